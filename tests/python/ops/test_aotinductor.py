"""AOTInductor: a layer compiled ahead of time in one process runs in another as it ran here."""

import json
import subprocess
import sys

import pytest
import torch

from sparseloom import ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.pattern import Pattern

# Of one package in a process that has planned nothing: the operator calls, the kernels that ran by their own
# counts, and the result.
RUN_ELSEWHERE = """
import json, sys, torch
from sparseloom import ops
from torch.utils._python_dispatch import TorchDispatchMode

class Calls(TorchDispatchMode):
    seen = []
    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.seen.append([operator.name(), [a for a in arguments if not isinstance(a, torch.Tensor)]])
        return operator(*arguments, **(named or {}))

package, x, y = sys.argv[1:]
model, given = torch._inductor.aoti_load_package(package), torch.load(x)
with Calls():
    result = model(given)
runs = json.loads(ops.call("kernel_runs"))
torch.save(result, y)
print(json.dumps({"calls": Calls.seen, "runs": runs}))
"""


# torch's own, at inductor's import
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_packaged_layer_runs_the_same_kernel_in_a_fresh_process(tmp_path):
    mask = torch.zeros(6, 8, dtype=torch.bool)
    mask[0] = mask[1:, 0] = True
    layer = BlockSparseLinear(64, 48, pattern=Pattern(48, 64, 8, mask), activation="relu")
    assert (
        layer.index.digest > 1 and layer.index.digest % 2 == 1
    )  # uneven block rows, which a plan without the digest would not know
    x = torch.randn(4, 64)
    package, x_file, y_file = (str(tmp_path / name) for name in ("layer.pt2", "x", "y"))
    program = torch.export.export(layer, (x,))
    torch._inductor.aoti_compile_and_package(program, package_path=package)
    torch.save(x, x_file)

    run = subprocess.run(
        [sys.executable, "-c", RUN_ELSEWHERE, package, x_file, y_file], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    there = json.loads(run.stdout)

    (name, arguments), *others = there["calls"]
    assert name == "sparseloom::bsr_linear" and not others
    rows, *_, digest = arguments
    assert (rows, digest) == (48, layer.index.digest)
    assert arguments[1:-1] == [ops.ACTIVATIONS["relu"], None, ops.PLAN_CHOOSES, False, False]
    assert there["runs"] == {layer.plan(4)["kernel"]: 1}
    with torch.no_grad():
        torch.testing.assert_close(torch.load(y_file), layer(x), rtol=0, atol=0)
