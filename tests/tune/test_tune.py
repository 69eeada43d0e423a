"""`berth tune` finds a weight that matters, and says so if none does."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from extender.policy import load_policy
from tests.worlds.assessed_clusters import objects_of, snapshot_file
from tests.worlds.commands import berth
from tests.worlds.process_starter import ROOT

pytestmark = pytest.mark.usefixtures("replays_in_turn")

EXAMPLE = (str(ROOT / "examples" / "replay" / "two-products.csv"), "--nodes", "2xa100-pcie-8-bridged,3xhgx-h100-8")
PAGE = ROOT / "docs" / "tune.md"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """Jobs that want good links, on a fleet with room for all of them."""
    rng = random.Random(1)
    rows = (f"{number * 300},{rng.randint(300, 900)},2,preferred\n" for number in range(12))
    path = tmp_path / "pairs.csv"
    path.write_text(f"arrival,duration,gpus,topology\n{''.join(rows)}")
    return str(path)


FAST_AND_SLOW = ("--nodes", "1xa100-pcie-8-bridged,1xhgx-h100-8", "--draws", "5")


def test_the_example_of_the_page_is_true(tmp_path: Path) -> None:
    """Equal seeds give equal results: the page and its picture were made by other processes."""
    picture, policy = tmp_path / "tune.svg", tmp_path / "tuned.yaml"
    words = ["tune", *EXAMPLE, "--aim", "large-jobs", "--picture", str(picture), "--write-policy", str(policy)]
    code, out, err = berth(words)
    assert (code, err.splitlines()[-1]) == (0, f"{policy} is written"), "a busy machine says first how long it takes"
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert out.endswith(shown), f"docs/tune.md shows another result than\n{out}"
    assert berth(["policy", "check", str(policy)])[0] == 0
    assert load_policy(policy.read_text()).weights.link == 4
    config_map = yaml.safe_load((ROOT / "manifests" / "base" / "policy.yaml").read_text())
    (tmp_path / "map.yaml").write_text(yaml.safe_dump({**config_map, "data": {"policy.yaml": policy.read_text()}}))
    assert berth(["policy", "check", str(tmp_path / "map.yaml")])[0] == 0
    assert picture.read_text() == (ROOT / "docs" / "img" / "tune.svg").read_text(), "stale: make picture"
    texts = {element.text for element in ET.parse(picture).getroot().iter(f"{SVG}text")}
    assert {"1   link 20 → 4", "2   no change", "ring bandwidth in the mean, GB/s"} <= texts


def test_a_figure_that_a_change_leaves_alone_is_no_difference(tmp_path: Path) -> None:
    jobs, policy = tmp_path / "jobs.csv", tmp_path / "policy.yaml"
    jobs.write_text("arrival,duration,gpus,topology\n" + "".join(f"{n * 300},200,2,preferred\n" for n in range(12)))
    policy.write_text("weights: {link: 0}\n")
    words = ["tune", str(jobs), *FAST_AND_SLOW, "--aim", "bandwidth", "--policy", str(policy)]
    assert "  GPUs allocated until the last arrival: no difference\n" in berth(words)[1]


def test_a_weight_that_clearly_matters_is_found(tmp_path: Path, pairs: str) -> None:
    policy, better = tmp_path / "policy.yaml", tmp_path / "better.yaml"
    policy.write_text("weights: {link: 0}\ncandidates: 8\n")
    words = f"--aim bandwidth --policy {policy} --write-policy {better}".split()
    code, out, _ = berth(["tune", pairs, *FAST_AND_SLOW, *words])
    assert code == 0
    assert out.splitlines()[-1] == "Better for bandwidth: link 0 → 20."
    assert re.search(r"^  ring bandwidth in the mean: \+\d+\.\d GB/s \(.*\), better$", out, re.MULTILINE)
    found = load_policy(better.read_text())
    assert (found.weights.link, found.weights.value, found.candidates) == (20, 12, 8)


def test_where_no_weight_matters_the_policy_is_kept(tmp_path: Path) -> None:
    jobs, better = tmp_path / "jobs.csv", tmp_path / "better.yaml"
    jobs.write_text("arrival,duration,gpus\n" + "".join(f"{number * 60},600,1\n" for number in range(20)))
    words = ["tune", str(jobs), "--nodes", "1xt4-4", "--aim", "utilisation", "--write-policy", str(better)]
    code, out, err = berth(words)
    assert (code, err) == (0, f"{better} is not written\n")
    assert "No other weight changes where one of the jobs goes, or when." in out
    assert out.splitlines()[-1] == "No difference beyond noise: keep the default policy."
    assert not better.exists()


def test_as_json(pairs: str) -> None:
    found = json.loads(berth(["tune", pairs, *FAST_AND_SLOW, "--aim", "bandwidth", "--output", "json"])[1])
    assert (found["aim"], found["jobs"], found["seed"], found["is_better"]) == ("bandwidth", 12, 1, False)
    assert found["weights"]["link"] == 20
    worse = next(one for one in found["candidates"] if one["changes"] == {"link": 4})
    assert worse["change"]["bandwidth"]["high"] < 0
    assert worse["change"]["large-jobs"] == {"mean": None, "low": None, "high": None, "draws": 0}


def test_an_aim_that_no_draw_measures_is_refused(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("arrival,gpus\n0,8\n")
    code, _, err = berth(["tune", str(jobs), "--nodes", "1xt4-4", "--aim", "bandwidth"])
    message = "--aim bandwidth: no pod with several GPUs got a node whose links are known"
    assert (code, err) == (2, f"berth: {message}")


def test_the_fleet_may_be_a_cluster_without_its_pods(tmp_path: Path) -> None:
    """Where all GPUs are of a device plugin, there is no fleet without this option."""
    node = {
        "machine": "hgx-h100-8",
        "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        "plugin": {"nvidia.com/gpu": "8"},
    }
    snapshot, jobs = snapshot_file(tmp_path, objects_of({"nodes": {"a": node}, "pods": []})), tmp_path / "jobs.csv"
    jobs.write_text("arrival,duration,gpus\n" + "".join(f"{number * 60},600,1\n" for number in range(20)))
    words = ["tune", str(jobs), "--aim", "utilisation"]
    code, out, err = berth([*words, "--snapshot", str(snapshot), "--emptied"])
    assert (code, err) == (0, "")
    assert "No difference beyond noise" in out
    code, _, err = berth([*words, "--nodes", "1xt4-4", "--emptied"])
    assert (code, err) == (2, "berth: --emptied: goes with --snapshot")


@pytest.mark.parametrize("aim", ["utilisation", "large-jobs"])
def test_where_no_job_waits_one_replay_says_that_weights_gain_nothing(tmp_path: Path, aim: str) -> None:
    """A trace of 8,000 jobs on a fleet that is nearly idle: half an hour of replays found nothing."""
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("arrival,duration,gpus\n" + "".join(f"{number * 60},30,8\n" for number in range(20)))
    with patch("extender.tune.tuning.resampled", side_effect=AssertionError("draws are made")):
        code, _, err = berth(["tune", str(jobs), "--nodes", "1xhgx-h100-8", "--aim", aim])
    message = f"--aim {aim}: no job waits on this fleet, so other weights cannot start one earlier"
    assert (code, err) == (2, f"berth: {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes", "1xt4-4", "--aim", "large-jobs"), "--aim large-jobs: no job has more than 4 GPUs"),
        (("--nodes", "1xt4-4", "--aim", "speed"), "Invalid value for '--aim': 'speed' is not one of"),
        (("--nodes", "1xt4-4"), "Missing option '--aim'"),
        (("--aim", "bandwidth"), "--nodes: is missing: give --nodes, --snapshot, or both"),
        (
            ("--nodes", "1xt4-4", "--aim", "bandwidth", "--draws", "4"),
            "Invalid value for '--draws': must be at least 5 (is '4')",
        ),
        (("--nodes", "1xt4-4", "--aim", "bandwidth", "--policy", "none.yaml"), "none.yaml: "),
    ],
)
def test_unusable_input_is_one_sentence(options: tuple[str, ...], message: str, pairs: str) -> None:
    code, _, err = berth(["tune", pairs, *options])
    assert code == 2
    assert err.startswith(f"berth: {message}")
    assert "\n" not in err


def test_a_long_tuning_says_after_its_first_replay_how_long_all_may_take(pairs: str) -> None:
    with patch("extender.cli.replay_commands._LONG_SECONDS", -1.0):
        _, _, err = berth(["tune", pairs, *FAST_AND_SLOW, "--aim", "bandwidth"])
    assert re.fullmatch(r"at most \d+ more replays of some [\d.]+ (s|min), on \d+ cores?: up to [\d.]+ (s|min)\n", err)
