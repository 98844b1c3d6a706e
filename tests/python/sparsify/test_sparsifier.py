"""Sparsifiers of one's own, and scores by torch where the weight is not on the host."""

import copy

import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, Pattern, ops, sparsify_
from sparseloom.nn import BlockSparseLinear
from sparseloom.ops import scores as _scores
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


STORED = {
    "Linear": (lambda: nn.Linear(64, 48), "0"),
    "ragged Linear": (lambda: nn.Linear(70, 45), "0"),
    "Conv1d of one tap": (lambda: nn.Conv1d(64, 48, 1), "0"),
    "Conv2d": (lambda: nn.Conv2d(64, 48, 3), "0"),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(48, 64, 3), "0"),
    "GRU": (lambda: nn.GRU(64, 32), "0.ih_l0"),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(64, 4), "0.out_proj"),
}


@pytest.mark.parametrize("kind", STORED)
def test_stored_takes_the_blocks_that_are_there_and_the_result_says_what_was_kept(kind: str) -> None:
    made, name = STORED[kind]
    torch.manual_seed(0)
    model = nn.Sequential(made())
    (site,) = [each for each in sparseloom.patch.survey.survey(model).sites if each.name == name]
    rows, cols = site.shape
    mask = sparseloom.pattern.random(rows, cols, 16, 0.4, 1)
    with torch.no_grad():
        weight = site.matrix(site.parameter)
        kept = mask.mask.repeat_interleave(16, 0).repeat_interleave(16, 1)[:rows, :cols]
        weight.mul_(kept.reshape(rows, cols, *(1,) * (weight.dim() - 2)))
        row, col = (
            16 * int(each) for each in mask.mask.nonzero()[0]
        )  # one element is enough to keep a block
        weight[row : row + 16, col : col + 16] = 0
        weight[row + 3, col + 2] = torch.nan if kind == "Linear" else 0.25
    changed = {}
    for how in (
        {"select": "stored"},
        {"density": 1.0},
        {"density": 0.1},
        {"select": "random", "density": 0.5, "seed": 0},
    ):
        if kind == "Linear" and "select" not in how:
            continue  # a NaN cannot be ranked
        other = copy.deepcopy(model)
        (change,) = sparsify_(other, {name: BlockSparse(16, **how)}).changed
        changed[how.get("select", how.get("density"))] = change
        if how == {"select": "stored"}:
            (layer,) = sparseloom.nn.held.sparse_weight.sparse_layers(other)
            assert layer.weight.pattern == mask
    stored = changed["stored"]
    assert stored.blocks == mask.blocks and stored.zero_blocks == 0
    if kind == "Linear":
        assert stored.kept is None
        return
    assert stored.kept == 1
    full, few = changed[1.0], changed[0.1]
    assert full.kept == 1 and full.zero_blocks == full.blocks - mask.blocks > 0
    assert few.kept < 0.6 and few.zero_blocks == 0
    total = float(site.value.abs().sum())
    chosen = sparseloom.pattern.balanced(rows, cols, 16, 0.5, torch.Generator().manual_seed(0))
    inside = chosen.mask.repeat_interleave(16, 0).repeat_interleave(16, 1)[:rows, :cols]
    left = site.value.abs() * inside.reshape(rows, cols, *(1,) * (weight.dim() - 2))
    assert changed["random"].kept == pytest.approx(float(left.sum()) / total)


def test_the_share_that_was_kept_is_in_the_result_of_every_layout_and_in_the_table() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 48)
    how = {
        "semi24": sparseloom.Semi24("magnitude"),
        "csr": sparseloom.InLayout("csr", density=0.1),
        "coo": sparseloom.InLayout("coo"),
        "bitmap": sparseloom.InLayout("bitmap"),
        "nm": sparseloom.InLayout("nm", n=1, m=4),
        "nmg": sparseloom.InLayout("nmg", n=2, m=4, g=4),
        "bsr": BlockSparse(16, 0.25),
        "masked": BlockSparse(16, 0.25, method=sparseloom.sparsify.methods.magnitude(0)),
        "masked by scores": BlockSparse(16, 0.25, method=sparseloom.sparsify.methods.supermask()),
    }
    for kind, recipe in how.items():
        layout = kind.split()[0]
        model = nn.Sequential(copy.deepcopy(linear))
        result = sparsify_(model, {"0": recipe})
        (change,) = result.changed
        assert change.layout == layout
        dense = model[0].effective() if layout == "masked" else model[0].to_dense().weight
        share = float((dense.abs().sum() / linear.weight.abs().sum()).detach())
        assert change.kept == pytest.approx(share)
        # the blocks of scores, too, which the first call writes into the mask
        assert change.density == pytest.approx(float((dense != 0).float().mean()), abs=0.01)
        assert (f"keeps {share:.1%}".replace("%", " %") + " of sum |w|") in str(result)
        assert result.to_dict()["changed"][0]["kept"] == change.kept
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 48))
    (change,) = sparsify_(model, {"0": BlockSparse(16, 0.5, "random")}).changed
    assert change.kept is None


def test_stored_takes_no_density_and_begins_no_method() -> None:
    weight = torch.zeros(48, 64)
    weight[20, 40] = 1
    layer = BlockSparseLinear.from_dense(weight, block=16, select="stored")
    assert layer.pattern.blocks == 1 and layer.pattern.mask[1, 2]
    conv = sparseloom.nn.BlockSparseConv1d.from_dense(nn.Conv1d(32, 32, 3), block=16, select="stored")
    assert conv.pattern.blocks == 4
    with pytest.raises(Error, match=r"no density with select='stored'"):
        BlockSparse(16, 0.5, "stored")
    with pytest.raises(Error, match=r"no density with select=.stored"):
        BlockSparseLinear.from_dense(weight, density=0.5, block=16, select="stored")
    with pytest.raises(Error, match=r"one of density and pattern, got a pattern and select='stored'"):
        BlockSparseLinear.from_dense(weight, layer.pattern, select="stored")
    with pytest.raises(Error, match=r"a pattern for a method to begin with"):
        BlockSparse(16, select="stored", method=sparseloom.sparsify.methods.magnitude(0))
    with torch.device("meta"), pytest.raises(Error, match="meta"):
        sparsify_(nn.Sequential(nn.Linear(64, 48)), {"0": BlockSparse(16, select="stored")})
