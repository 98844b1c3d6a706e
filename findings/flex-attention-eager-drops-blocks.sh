#!/usr/bin/env bash
# flex_attention leaves out no block when it is not compiled: of a BlockMask it reads mask_mod alone.
#
# Seen with torch 2.13.0, CPU: BlockMask.from_kv_blocks with lists of 7 of 16 blocks. to_dense() and sparsity() (56.25) show
# those. torch.compile(flex_attention) attends to just these keys, as scaled_dot_product_attention does with the same mask
# spelled out. Eagerly, and with the backends "eager" and "aot_eager", the same call attends to every key that mask_mod admits:
# to all of them without a mask_mod, to the whole triangle with a causal one. No error; the warning about missing
# torch.compile speaks of memory. BlockMask's docstring says that the format requires only the lists, and from_kv_blocks takes
# mask_mod as optional.
#
# Whom it hurts: whoever picks blocks by their scores (top-k block attention) and hands over the lists of them alone:
# tests, debugging and reference results in eager mode come from dense attention.
# Exits 0 if the behaviour is as stated, 1 if it changed. The compiled half needs a C++ compiler.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/blocks.py" <<'PY'
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention


def causal(batch, head, q, kv):
    return q >= kv


torch.manual_seed(0)
query, key, value = (torch.randn(1, 2, 512, 32) for _ in range(3))
# Each row of blocks keeps block 0 and its own; the entries past the counts are not part of the lists.
counts = torch.tensor([1, 2, 2, 2], dtype=torch.int32).expand(1, 2, 4).contiguous()
lists = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 1, 3], [0, 3, 1, 2]], dtype=torch.int32)
kept = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]])
in_blocks = kept.bool().repeat_interleave(128, 0).repeat_interleave(128, 1)
ways = {
    "eager": flex_attention,
    "backend eager": torch.compile(flex_attention, backend="eager"),
    "backend aot_eager": torch.compile(flex_attention, backend="aot_eager"),
    "compiled": torch.compile(flex_attention),
}
every = torch.ones(512, 512, dtype=torch.bool)
for name, mask_mod, admitted in (("no mask_mod", None, every), ("causal", causal, every.tril())):
    blocks = BlockMask.from_kv_blocks(
        counts, lists.expand(1, 2, 4, 4).contiguous(), BLOCK_SIZE=128, mask_mod=mask_mod
    )
    shown = bool((blocks.to_dense() == kept).all())
    print(f"{name}: to_dense() shows the lists: {shown}, sparsity {blocks.sparsity()}")
    for way, attention in ways.items():
        out = attention(query, key, value, block_mask=blocks)
        answers = {"lists and mask_mod": admitted & in_blocks, "mask_mod alone": admitted}
        equal = [
            answer
            for answer, mask in answers.items()
            if torch.allclose(
                out, scaled_dot_product_attention(query, key, value, attn_mask=mask), rtol=1e-4, atol=1e-4
            )
        ]
        print(f"  {way}: {equal}")
PY
seen=$(TORCHINDUCTOR_CACHE_DIR="$folder/cache" "$folder/venv/bin/python" -W ignore "$folder/blocks.py")
echo "$seen"
wanted="no mask_mod: to_dense() shows the lists: True, sparsity 56.25
  eager: ['mask_mod alone']
  backend eager: ['mask_mod alone']
  backend aot_eager: ['mask_mod alone']
  compiled: ['lists and mask_mod']
causal: to_dense() shows the lists: True, sparsity 56.25
  eager: ['mask_mod alone']
  backend eager: ['mask_mod alone']
  backend aot_eager: ['mask_mod alone']
  compiled: ['lists and mask_mod']"
[ "$seen" = "$wanted" ] && echo "as stated"
