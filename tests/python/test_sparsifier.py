"""Sparsifiers of one's own, and scores by torch where the weight is not on the host."""

import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, Pattern, _scores, ops, sparsify_
from sparseloom.nn import BlockSparseLinear
from sparseloom.sparsify import Context, Sparsifier


class BySensitivity(Sparsifier):
    """Keeps the blocks with the largest sum of |w * gradient|."""

    def __call__(self, context: Context) -> Pattern:
        saliency = context.weight * context.need("gradient")
        return sparseloom.pattern.from_dense(saliency, context.block, context.share, scope=context.scope)


class OneBlock(Sparsifier):
    """Decides by itself how much stays."""

    needs_values = False

    def __call__(self, context: Context) -> Pattern:
        (rows, cols), (bm, bn) = context.shape, context.block
        mask = torch.zeros(-(-rows // bm), -(-cols // bn), dtype=torch.bool)
        mask[0, -1] = True
        return Pattern(rows, cols, context.block, mask)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_sparsifier_sees_the_gradient_of_the_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48))
    weight = model[0].weight
    with pytest.raises(Error, match=r"gradient.*backward"):
        sparsify_(model, {"0": BlockSparse(16, 0.5, BySensitivity())})
    model(torch.randn(8, 64)).square().sum().backward()
    assert weight.grad is not None
    expected = sparseloom.pattern.from_dense(weight * weight.grad, 16, 0.5)
    made = BlockSparseLinear.from_dense(model[0], density=0.5, block=16, select=BySensitivity())
    assert made.pattern == expected != sparseloom.pattern.from_dense(weight, 16, 0.5)
    sparsify_(model, {"0": BlockSparse(16, 0.5, BySensitivity())})
    assert model[0].pattern == expected


def test_a_sparsifier_may_decide_the_density() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 48))
    sparsify_(model, {"0": BlockSparse(16, select=OneBlock())})
    assert model[0].pattern.blocks == 1 and model[0].pattern.mask[0, 3]


def test_what_a_sparsifier_returns_has_to_fit() -> None:
    class Wrong(Sparsifier):
        def __call__(self, context: Context) -> Pattern:
            return sparseloom.pattern.full(16, 16, 16)

    with pytest.raises(Error, match=r"64 x 64.*16 x 16"):
        sparsify_(nn.Sequential(nn.Linear(64, 64)), {"0": BlockSparse(16, 0.5, Wrong())})


@pytest.mark.parametrize("name", ["gradient", "input_statistics", "hessian"])
def test_what_is_not_known_raises(name: str) -> None:
    with pytest.raises(Error, match=name):
        Context(torch.ones(4, 4)).need(name)
    known = torch.ones(4)
    assert Context(torch.ones(4, 4), **{name: known}).need(name) is known
    with pytest.raises(Error, match="a density"):
        _ = Context(torch.ones(4, 4)).share


@pytest.mark.parametrize("select", ["l3", None, 3, abs])
def test_another_select_raises(select: object) -> None:
    with pytest.raises(Error, match=r"'magnitude'.*'random', a Pattern or a Sparsifier"):
        BlockSparse(16, 0.5, select)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("dtype", ops.DTYPES)
@pytest.mark.parametrize("shape", [(64, 96), (61, 90), (1, 1), (0, 32)])
def test_torch_scores_as_the_operator_does(norm: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=seeded(0)).to(dtype)
    for matrix in (weight, weight.t()):
        expected = _scores.block_scores(matrix, (16, 32), norm)
        found = _scores.scores_on_device(matrix, (16, 32), norm)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        rows, cols = matrix.shape
        count = expected.numel() // 2
        patterns = [sparseloom.pattern.top_k(rows, cols, (16, 32), s, count) for s in (found, expected)]
        assert patterns[0] == patterns[1]


def test_a_tie_goes_to_the_lowest_index_and_nan_is_refused_on_both_ways() -> None:
    weight = torch.ones(64, 64)
    for scores in (
        _scores.block_scores(weight, (16, 16), "l1"),
        _scores.scores_on_device(weight, (16, 16), "l1"),
    ):
        assert sparseloom.pattern.top_k(
            64, 64, 16, scores, 3
        ).mask.flatten().nonzero().flatten().tolist() == [0, 1, 2]
    weight[5, 5] = float("nan")
    for norm in _scores.NORMS:
        assert _scores.scores_on_device(weight, (16, 16), norm)[0, 0].isnan()


def test_of_a_weight_elsewhere_only_the_scores_come_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Tensor):
        """A weight that says it is on a GPU, and cannot leave it."""

        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("cuda")

        def cpu(self, *_: object) -> Tensor:  # type: ignore[override]
            raise AssertionError("the weight was copied to the host")

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = super().__torch_function__(func, types, args, kwargs)
            if func is Tensor.to:
                assert args[0].numel() == 16, "more than the scores was copied"
                return result.as_subclass(Tensor)
            return result

    real = ops.call

    def call(name: str, *arguments: object) -> object:
        assert name != "block_scores", "the weight was scored on the host"
        return real(name, *arguments)

    monkeypatch.setattr(ops, "call", call)
    plain = torch.randn(64, 64, generator=seeded(0))
    found = sparseloom.pattern.from_dense(plain.as_subclass(Elsewhere), 16, 0.5)
    monkeypatch.undo()
    assert found == sparseloom.pattern.from_dense(plain, 16, 0.5)
