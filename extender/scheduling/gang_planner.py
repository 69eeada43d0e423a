"""STUB until the planner branch lands."""

from __future__ import annotations

from extender.allocation import Snapshot
from extender.scheduling.evaluate import EvaluationContext, evaluate
from extender.scheduling.gang_plan import GangPlan, GangProblem, GangShortage
from extender.scheduling.placements import Placement
from extender.scheduling.ranking_cache import RankingCache


class GangPlanner:
    def plan(
        self, problem: GangProblem, snapshot: Snapshot, context: EvaluationContext, rankings: RankingCache
    ) -> GangPlan | GangShortage:
        used: set[str] = set()
        placements = {}
        for member in problem.members:
            for name in sorted(snapshot.node_infos):
                if name in used or name in member.excluded or (member.nodes is not None and name not in member.nodes):
                    continue
                info = snapshot.node_infos[name]
                if not all(s.matches(name, info.node.labels) for s in member.requirements.node_selectors):
                    continue
                status = evaluate(info, member.requirements, context)
                if isinstance(status, Placement):
                    used.add(name)
                    placements[member.uid] = (name, status)
                    break
            else:
                return GangShortage(len(problem.members), len(placements), "", "")
        return GangPlan(placements, "", "")
