"""Changes of the ONNX graph keep its values; the reference is ONNX Runtime's CPU provider on the graph before."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from npulift.targets.qnn.erf_form import replace_erf
from npulift.targets.qnn.onnx_fixes import constants_last, replace_gather_nd


def run(model, feed):
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)[0]


@st.composite
def gathers(draw):
    """(shape of the data, depth of the index tuples, index tuples with negatives, whether they are a constant)."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    depth = draw(st.integers(1, len(shape)))
    count = draw(st.integers(1, 6))
    index = [[draw(st.integers(-shape[d], shape[d] - 1)) for d in range(depth)] for _row in range(count)]
    return shape, depth, np.array(index, np.int64), draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(gathers())
def test_gather_instead_of_gathernd_picks_the_same_rows(case):
    shape, depth, index, fixed = case
    inputs = [helper.make_tensor_value_info("data", TensorProto.FLOAT, shape)]
    if not fixed:
        inputs.append(helper.make_tensor_value_info("index", TensorProto.INT64, index.shape))
    graph = helper.make_graph(
        [helper.make_node("GatherND", ["data", "index"], ["y"], name="pick")], "g", inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [len(index), *shape[depth:]])], [numpy_helper.from_array(index, "index")] if fixed else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    feed = {"data": np.arange(np.prod(shape), dtype=np.float32).reshape(shape), **({} if fixed else {"index": index})}
    wanted = run(model, feed)
    assert replace_gather_nd(model) == ["pick"]
    np.testing.assert_array_equal(run(model, feed), wanted)


def test_constants_come_second():
    graph = helper.make_graph(
        [helper.make_node("Mul", ["w", "x"], ["y"]), helper.make_node("Sub", ["w", "y"], ["z"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    constants_last(model)
    assert [list(n.input) for n in model.graph.node] == [["x", "w"], ["w", "y"]]
    onnx.checker.check_model(model)


def exported(module, *inputs):
    from npulift.onnx_export import to_onnx

    return to_onnx(torch.export.export(module.eval(), inputs))[0]


@pytest.mark.parametrize(("name", "wanted"), [("erf", torch.erf), ("gelu", torch.nn.functional.gelu)])
def test_erf_by_exponential_is_accurate_everywhere(name, wanted):
    class Module(torch.nn.Module):
        def forward(self, x):
            return wanted(x)

    x = torch.cat([torch.linspace(-6, 6, 2001), torch.tensor([0.0, -0.0, 40.0, -40.0])])
    model = exported(Module(), x)
    assert len(replace_erf(model, gelu=True)) == 1
    np.testing.assert_allclose(run(model, {"x": x.numpy()}), wanted(x.double()).numpy(), atol=1e-6)
