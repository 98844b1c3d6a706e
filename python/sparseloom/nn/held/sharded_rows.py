"""ShardedRows: an entry of a cut layer's state dict, which torch.distributed.checkpoint saves and loads in
the order of the whole weight. It is imported where a layer is cut alone: DTensor takes two seconds to
import."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from ...errors import Error

_aten = torch.ops.aten
#: Elementwise functions that keep shape and order.
_ALIKE = (
    _aten.detach.default,
    _aten.alias.default,
    _aten.clone.default,
    _aten._to_copy.default,
    _aten.empty_like.default,
    _aten.zeros_like.default,
)


class ShardedRows(DTensor):
    """A view of a DTensor in the order of the parts (see nn.held.cut) as one in the whole weight's order.

    Its memory is the DTensor's, so that torch.distributed.checkpoint loads into the layer itself. It can be
    saved, loaded, copied, moved and gathered (``full_tensor``); everything else raises Error.
    """

    _places: Tensor
    _part: int
    _room: int
    _found: dict[int, Tensor] | None

    @classmethod
    def of(cls, parts: DTensor, places: Tensor, part: int, room: int) -> ShardedRows:
        """Makes the view.

        Args:
            parts: [parts * room, ...], sharded on dimension 0 over the last dimension of its mesh, and over
                others by fully_shard.
            places: int64 [rows] on the CPU, the place of each row in ``parts``.
            part: the number of this rank's part.
            room: the number of places of each part.
        """
        shape = torch.Size((len(places), *parts.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        spec = DTensorSpec(
            parts.device_mesh, parts.placements, tensor_meta=TensorMeta(shape, stride, parts.dtype)
        )
        view = cls(parts._local_tensor.detach(), spec, requires_grad=False)
        view._places, view._part, view._room, view._found = places, part, room, None
        return view

    def _with(self, tensor: Tensor) -> ShardedRows:
        meta = TensorMeta(self.shape, self.stride(), tensor.dtype)
        spec = DTensorSpec(self.device_mesh, self.placements, tensor_meta=meta)
        view = type(self)(tensor, spec, requires_grad=False)
        view._places, view._part, view._room, view._found = self._places, self._part, self._room, None
        return view

    def pieces(self) -> dict[int, Tensor]:
        """Returns {first row: view} for each run of consecutive rows that this rank holds."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def _find(self) -> dict[int, Tensor]:
        mesh, begin, count = self.device_mesh, self._part * self._room, self._room
        coordinate = mesh.get_coordinate()
        assert coordinate is not None
        for dim, placement in enumerate(self.placements[:-1]):  # of fully_shard: by torch.chunk
            if not placement.is_replicate():
                chunk = -(-count // mesh.size(dim))
                skipped = min(coordinate[dim] * chunk, count)
                begin, count = begin + skipped, min(chunk, count - skipped)
        if count != self._local_tensor.shape[0]:
            expected, got = f"{count} rows on this rank", str(self._local_tensor.shape[0])
            raise Error("state_dict", expected, got, "cut the layer first, then fully_shard on dimension 0")
        places, order = self._places.sort()
        ends = torch.tensor([begin, begin + count], device="cpu")
        first, last = torch.searchsorted(places, ends).tolist()
        own_places, rows = (places[first:last] - begin).tolist(), order[first:last].tolist()
        runs, start = {}, 0
        for i in range(1, len(rows) + 1):
            if i == len(rows) or rows[i] != rows[i - 1] + 1 or own_places[i] != own_places[i - 1] + 1:
                runs[rows[start]] = self._local_tensor[own_places[start] : own_places[i - 1] + 1]
                start = i
        return runs

    def full_tensor(self, *, grad_placements: Any = None) -> Tensor:
        """Returns the whole tensor, on every rank of the mesh, all of which have to call this."""
        whole = torch.zeros(self.shape, dtype=self.dtype, device=self._local_tensor.device)
        for row, piece in self.pieces().items():
            whole[row : row + len(piece)] = piece
        # Bytes are summed because the sum of numbers would turn -0 into 0. All summands but one are zero.
        for dim, placement in enumerate(self.placements):
            if not placement.is_replicate():
                dist.all_reduce(whole.view(-1).view(torch.uint8), group=self.device_mesh.get_group(dim))
        return whole

    def redistribute(self, *args: Any, **options: Any) -> DTensor:
        """Returns the whole tensor as a replicated DTensor, which get_model_state_dict asks for; raises Error
        for any other placements."""
        placements = options.get("placements", args[1] if len(args) > 1 else ())
        if not placements or not all(placement.is_replicate() for placement in placements):
            raise _refusal(f"redistribute to {placements}")
        everywhere = [Replicate()] * self.device_mesh.ndim
        return DTensor.from_local(self.full_tensor(), self.device_mesh, everywhere, run_check=False)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        first = args[0] if args else None
        if isinstance(first, ShardedRows) and func in _ALIKE:
            return first._with(func(first._local_tensor, *args[1:], **(kwargs or {})))
        if (
            isinstance(first, ShardedRows)
            and func is _aten.copy_.default
            and isinstance(args[1], ShardedRows)
        ):
            first._local_tensor.copy_(args[1]._local_tensor)
            return first
        raise _refusal(str(func))

    # The protocol of torch.distributed.checkpoint for tensors with their own chunks
    # (torch.distributed._checkpointable).

    def __create_write_items__(self, fqn: str, object: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import (
            ChunkStorageMetadata,
            MetadataIndex,
            TensorProperties,
        )
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties.create_from_tensor(self._local_tensor)
        return [
            WriteItem(
                MetadataIndex(fqn, offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(ChunkStorageMetadata(offsets, sizes), properties, self.shape),
            )
            for offsets, sizes in self._chunks()
        ]

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(offsets, sizes) for offsets, sizes in self._chunks()]

    def __get_tensor_shard__(self, index: Any) -> Tensor:
        return self.pieces()[index.offset[0]]

    def _chunks(self) -> list[tuple[torch.Size, torch.Size]]:
        zeros = (0,) * (self.dim() - 1)
        return [(torch.Size((row, *zeros)), piece.shape) for row, piece in self.pieces().items()]


def _refusal(func: str) -> Error:
    expected = "an entry of a cut layer's state dict to be saved, loaded, copied, moved or gathered"
    return Error("state_dict", expected, func, "call full_tensor() on all ranks first")
