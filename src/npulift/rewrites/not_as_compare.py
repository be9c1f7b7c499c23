"""Write the negation of a mask as a comparison with False.

Applies to bitwise_not and logical_not of boolean tensors. Exact.
Pays where a compiler has no bitwise operators (executorch's Qualcomm back end stopped with KeyError 'aten.bitwise_not.default', pull request 21607; Ethos-U55 leaves them on the CPU).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


def match(module: GraphModule) -> Iterator[Node]:
    """Negated masks."""
    for node in graphs.calls(module.graph, _aten.bitwise_not.default, _aten.logical_not.default):
        source = node.args[0]
        if isinstance(source, Node) and source.meta["val"].dtype == torch.bool:
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Put a comparison there."""
    graphs.replace_all(module, node, graphs.call(module, node, _aten.eq.Scalar, node.args[0], False))
    return True


REWRITE = Rewrite("NPU520", "not-as-compare", N_("Write the negation of a mask as a comparison with False."), match, replace, families=("qnn", "ethos-u", "rknn"), gain=0.2)
