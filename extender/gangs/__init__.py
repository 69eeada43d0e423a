"""What a gang is, and its plan. The life of a gang in `berth serve` is in `extender.serve.gangs`.

`gang` reads from a snapshot which pods belong together, how many of them must run together, and how many run already.
`gang_problem` makes the planner's input: the requirements of the members, the nodes that each may use, and units:
members that share a pending claim must be on one node, and equal units are counted instead of compared. `gang_planner`
returns a GangPlan, with a node and devices for every member, or a GangShortage. It tries single nodes first, then
`domains` level by level, the tightest first. `node_rooms` has the devices that an unfinished plan has taken, and
computes how many more equal units fit on each node. It evaluates only the nodes of domains that its bounds do not rule
out, and keeps the evaluations between calls. `spreading` chooses the fewest sub-domains. `subgroup_filling` places
gangs with sub-groups, each of them in one domain. `member_limits` has what members require of each other. Where the
preferred devices of the members leave no room, `gang_search` tries all others, up to a number of steps.

As in all of the core, a plan depends only on a snapshot, the pods and the policy: no I/O, clock or asyncio. `explain`
asks the same planner. Each module is a face by itself.
"""
