"""The virtual Ascend: the real torch_npu front end on a machine without CANN and without an NPU."""
