"""Each of the ways in which torch lets float32 products be TF32 is read, and reading one never trips over
another."""

import forked
import pytest

WAYS = {
    "torch.backends.cuda.matmul.allow_tf32 = True": True,
    "torch.backends.cuda.matmul.allow_tf32 = False": False,
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": True,
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'": False,
    "torch.backends.fp32_precision = 'tf32'": True,
    "torch.set_float32_matmul_precision('high')": True,
    "torch.set_float32_matmul_precision('highest')": False,
    "pass": False,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_way_of_allowing_tf32_is_read(way, tmp_path):
    # A process of its own: torch forbids mixing its older and newer switches in one.
    program = f"import torch\nfrom sparseloom import ops\n{way}\nprint(ops.tf32_allowed())"
    done = forked.run(program, tmp_path)
    assert done.stdout.strip() == str(WAYS[way]), done.stderr
