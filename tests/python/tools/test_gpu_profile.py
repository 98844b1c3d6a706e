"""tools/profile_gpu: what is asked of the profiler, how its list is read, and what its refusals become;
without a GPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparseloom_bench.bench.gpu import goals, groups

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
gpu_profile = importlib.import_module("gpu_profile")
gpu_goals = importlib.import_module("gpu_goals")

NAMES = {
    "us": "gpu__time_duration.sum",
    "tensor": "sm__pipe_tensor_cycles_active.x",
    "l2_to_sm": "l1tex__bytes.per_second",
    "dram": "gpu__dram.x",
    "stall:gmma": "smsp__gmma.ratio",
    "stall:wait": "smsp__wait.ratio",
    "stall:selected": "s.ratio",
}
FUNCTION = "void sparseloom::kernels::cuda::(anonymous namespace)::decode_kernel<Tile<64>, (int)3>(Params)"


def log(*rows: tuple[str, ...]) -> str:
    head = ["ID", "Kernel Name", *NAMES.values()]
    units = ["", "", "ns", "%", "byte/s", "%", "", "", ""]
    lines = (",".join(f'"{entry}"' for entry in line) for line in (head, units, *rows))
    return "==PROF== Connected to process 1\n" + "\n".join(lines) + "\n==PROF== Disconnected\n"


def spin(number: int) -> tuple[str, ...]:
    return (str(number), "spin_kernel(long)", "900", "0", "0", "0", "0", "0", "1")


def test_the_flagships_are_promised_cells_of_each_operation() -> None:
    cells = {str(cell): cell for cell in groups.gpu_cells()}
    chosen = [cells[name] for name in gpu_profile.FLAGSHIPS]
    assert all(goals.goal(cell) for cell in chosen)
    kinds = {(cell.direction, cell.dtype, cell.m <= 64) for cell in chosen}
    wanted = [
        ("forward", "bf16"),
        ("dx", "bf16"),
        ("dw", "bf16"),
        ("forward", "fp8"),
        ("forward", "tf32"),
        ("forward", "f32"),
    ]
    assert kinds == {(*kind, False) for kind in wanted} | {("forward", "bf16", True)}


def test_only_what_exists_is_asked_for() -> None:
    stall = "smsp__average_warps_issue_stalled_{}_per_issue_active"
    known = {
        "gpu__time_duration",
        "sm__pipe_tensor_op_hmma_cycles_active",
        "dram__throughput",
        stall.format("gmma"),
        "sm__other",
    }
    found = gpu_profile.asked(known)
    assert set(found) == {"us", "tensor", "dram", "stall:gmma"} and found["tensor"].startswith(
        "sm__pipe_tensor_op_hmma"
    )
    assert found["stall:gmma"] == stall.format("gmma") + ".ratio"
    whole = gpu_profile.asked(set())  # ncu did not say: everything by its first name
    assert {name for name in whole if not name.startswith("stall:")} == set(
        gpu_profile.METRICS
    ) and "stall:long_scoreboard" in whole


def test_each_cell_gets_its_longest_launch() -> None:
    said = [
        {"name": "a", "kernel": "sm90", "listed": True},
        {"name": "b", "error": "no fp8"},
        {"name": "d", "error": "it broke", "listed": True},
        {"name": "c", "kernel": "sm80", "listed": True},
    ]
    rows = [
        spin(0),
        ("1", "reduce(int)", "2,000", "1", "1e12", "5", "0.01", "3", "1"),
        ("2", FUNCTION, "99,500", "85.5", "7.2e12", "20", "9.25", "1.5", "1"),
        spin(3),
        spin(4),
        ("5", FUNCTION, "10000", "30", "2.7e12", "n/a", "0.5", "2.5", "1"),
    ]
    a, b, d, c = gpu_profile.records_of(said, log(*rows), NAMES)
    assert (a["us"], a["function"], a["launches"]) == (99.5, "decode_kernel", 2)
    assert a["metrics"] == {"tensor": 85.5, "l2_to_sm": 7.2, "dram": 20.0} and a["stalls"] == {
        "gmma": 9.25,
        "wait": 1.5,
    }
    assert a["limit"] == "tensor cores: 86 %"
    assert b["error"] == "no fp8" and d["error"] == "it broke" and "us" not in b
    assert c["metrics"] == {"tensor": 30.0, "l2_to_sm": 2.7}
    assert c["limit"] == "latency: nothing above 30 % (tensor cores); warps wait for wait"
    page = gpu_goals.profile_part({"records": [a, b, d, c]}, "caption.")
    assert "not profiled: no fp8" in page and "gmma 9.2, wait 1.5" in page and "| 85.5 |" in page
    assert len({line.count("|") for line in page.splitlines() if line.startswith("|")}) == 1
    named = [a | {"name": "dx-bf16-1x2x3"}, b, d, c | {"name": "forward-f32-1x2x3"}]
    limits = gpu_goals.limits_part({"records": named}, "caption.")
    assert "| dX | bf16 |" in limits and "| tensor cores | 86 % | 1 |" in limits
    assert "| latency; warps wait for wait | 30 % | 1 |" in limits


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
            "no permission to read the GPU's counters",
        ),
        ("==ERROR== Failed to find metric x\n", "ncu: Failed to find metric x"),
        ("", "ncu listed no launch"),
    ],
)
def test_a_refusal_is_said(text: str, word: str) -> None:
    (record,) = gpu_profile.records_of([{"name": "a", "kernel": "k", "listed": True}], text, NAMES)
    assert word in record["error"]


def test_an_l2_bound_kernel_is_named_with_its_distance() -> None:
    assert gpu_profile.limit({"tensor": 40.0, "l2_to_sm": 8.1, "l2": 71.0}, {}) == "L2 to SM, of 9 TB/s: 90 %"
    assert gpu_profile.limit({}, {}) == "no counter was read"


def test_the_whole_with_a_stand_in_for_ncu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing, ncu = tmp_path / "list", tmp_path / "ncu"
    metric = gpu_profile.METRICS["us"][0]
    listing.write_text(
        f'"ID","Kernel Name","{metric}"\n"","","ns"\n"0","spin_kernel","1"\n"1","dw_kernel<1>","5000"\n'
    )
    said = gpu_profile.SAID + json.dumps({"name": "dw", "kernel": "sm90_wgmma", "listed": True})
    script = f"""#!{sys.executable}
import shutil, sys
if "--query-metrics" in sys.argv:
    print("gpu__time_duration   Counter   duration")
else:
    assert sys.argv[sys.argv.index("--metrics") + 1].startswith({metric!r})
    shutil.copy({str(listing)!r}, sys.argv[sys.argv.index("--log-file") + 1])
    print({said!r})
"""
    ncu.write_text(script)
    ncu.chmod(0o755)
    written: list[Any] = []
    monkeypatch.setattr(gpu_profile, "find_ncu", lambda: str(ncu))
    monkeypatch.setattr(gpu_profile, "write", lambda records, _: written.append(records) or tmp_path)
    assert gpu_profile.main(["--cells", "dw"]) == 0
    assert written[0][0]["us"] == 5.0 and written[0][0]["function"] == "dw_kernel"
    assert "dw: no counter was read" in capsys.readouterr().out
    monkeypatch.setattr(gpu_profile, "find_ncu", lambda: None)
    assert gpu_profile.main([]) == 1


def test_cells_short_of_their_targets_are_profiled_by_the_names_of_the_benchmark() -> None:
    cells = [cell for cell in groups.gpu_cells() if cell.direction == "forward" and not cell.rotated][:3]
    goal = {"figure": 2.0, "least": 2.0, "of_forward": False, "sustained": 0.92}
    fields = ("direction", "dtype", "m", "k", "n", "density", "pattern", "block")
    records = [
        {"op": "linear", "goal": goal, "speedup": speedup, "sustained": {"speedup": 2.0}}
        | {name: getattr(cell, name) for name in fields}
        for cell, speedup in zip(cells, (1.9, 2.0, 0.5), strict=True)
    ]
    failed = records[0] | {"error": "no memory"}
    assert sorted(gpu_profile.missed([*records, failed])) == sorted([str(cells[0]), str(cells[2])])
    assert gpu_profile.missed([]) == []


def test_without_a_gpu_every_cell_says_so() -> None:
    program = str(Path(gpu_profile.__file__).with_name("profile_gpu"))
    command = [sys.executable, program, "--launch", "--cells", f"{gpu_profile.FLAGSHIPS[0]},x"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    )
    said = [
        json.loads(line.removeprefix(gpu_profile.SAID))
        for line in done.stdout.splitlines()
        if line.startswith(gpu_profile.SAID)
    ]
    assert [each["name"] for each in said] == [gpu_profile.FLAGSHIPS[0], "x"] and all(
        "error" in each for each in said
    ), done.stderr


def test_the_newest_of_a_gpu_s_records_says_what_is_missed(tmp_path: Path) -> None:
    (cell, other) = [cell for cell in groups.gpu_cells() if cell.direction == "dw"][:2]
    goal = {"figure": 2.0, "least": 2.0, "of_forward": False, "sustained": 0.92}
    fields = ("direction", "dtype", "m", "k", "n", "density", "pattern", "block")

    def record(of, speedup):
        return {"op": "linear", "goal": goal, "speedup": speedup, "sustained": {"speedup": 2.0}} | {
            name: getattr(of, name) for name in fields
        }

    def write(name, date, suite, *records):
        run = {"suite": suite, "gpu": {}, "date": date, "records": list(records)}
        (tmp_path / name).write_text(json.dumps(run))

    write("gpu.json", "2026-01-02", "gpu", record(cell, 2.1), record(other, 1.0))
    write("gpu-dw.json", "2026-01-03", "gpu", record(cell, 1.9))
    write("models.json", "2026-01-04", "models", record(other, 3.0))
    assert gpu_profile.missed(gpu_profile.newest_records(tmp_path)) == [str(cell), str(other)]
    write("gpu-dw.json", "2026-01-01", "gpu", record(cell, 1.9))
    assert gpu_profile.missed(gpu_profile.newest_records(tmp_path)) == [str(other)]
    assert gpu_profile.newest_records(tmp_path / "none") == []
