"""bench arms at its smoke size: four arms of one encoder, what their record says, and what it refuses."""

import json
import math

import pytest
import torch

from sparseloom import cli
from sparseloom_bench.bench import arms


def test_every_arm_of_a_smoke_run_is_recorded(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "arms", "--smoke", "--results", str(tmp_path)])
    assert end.value.code == 0
    (path,) = tmp_path.glob("*/arms.json")
    records = json.loads(path.read_text())["records"]
    assert [each["arm"] for each in records] == list(arms.ARMS)
    by_arm = {each["arm"]: each for each in records}
    assert all(math.isfinite(each["ms"]) and each["ms"] > 0 for each in records)
    assert by_arm["bf16"]["speedup"] == 1 and by_arm["bf16"]["rounding_error"] == 0
    # rounding to e4m3, of 3 bits, is seen and is no other model
    assert 0.001 < by_arm["quantized"]["rounding_error"] < 0.2
    assert 0.001 < by_arm["sparse + quantized"]["rounding_error"] < 0.2
    assert by_arm["sparse + quantized"]["weight_bytes"] < 0.5 * by_arm["bf16"]["weight_bytes"]
    assert by_arm["sparse"]["weight_bytes"] < 0.7 * by_arm["bf16"]["weight_bytes"]
    assert "sparse + quantized" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "arms"])
    assert end.value.code == 1
    assert "sparseloom bench arms: [bench] expected" in capsys.readouterr().err
