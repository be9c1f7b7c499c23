"""How Ascend's files spell operator types, dtypes, formats and shapes, brought to one form.

Source of the spellings: torch_npu's and msprof's own outputs (old 'FLOAT16' and 'FORMAT_ND', new 'DT_BF16' and 'ND').
"""

from __future__ import annotations

import polars as pl

DTYPES = {
    "float": "float32", "float32": "float32", "float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16", "double": "float64", "float64": "float64",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    "bool": "bool", "complex64": "complex64", "complex128": "complex128", "complex32": "complex32",
}
HOST_DEVICES = ("CPU", "HOST")
COMMUNICATION = ("HCCL", "COMMUNICATION")
COPIES = ("MEMCPY_ASYNC", "MEMCPY", "SDMA", "PCIE_DMA", "PCIE_DMA_SQE", "SDMA_SQE")
WAITS = ("EVENT_WAIT", "EVENT_RECORD", "NOTIFY_WAIT", "NOTIFY_RECORD", "WRITE_VALUE", "WAIT_VALUE", "EVENT_WAIT_SQE", "NOTIFY_WAIT_SQE",
         "EVENT_RECORD_SQE", "NOTIFY_RECORD_SQE", "PLACE_HOLDER_SQE")


def _mapped(frame: pl.DataFrame, column: str, function) -> pl.DataFrame:  # type: ignore[no-untyped-def]
    """Apply a Python function to each distinct value of a text column."""
    distinct = frame[column].drop_nulls().unique()
    mapping = {value: function(value) for value in distinct.to_list()}
    if all(k == v for k, v in mapping.items()):
        return frame
    return frame.with_columns(pl.col(column).replace_strict(mapping, default=None, return_dtype=pl.Utf8))


def dtype(name: str) -> str:
    """'DT_BF16' or 'FLOAT' in torch's lower-case names; what is unknown stays, in lower case."""
    plain = name.strip().lower().removeprefix("dt_").removeprefix("c10::").removeprefix("at::")
    return DTYPES.get(plain, plain)


def normal_dtypes(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Lists of dtypes in torch's names."""
    return _mapped(frame, column, lambda value: ";".join(dtype(v) for v in value.strip('"').replace("|", ";").split(";")))


def formats(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Lists of formats without the prefix FORMAT_."""
    return _mapped(frame, column, lambda value: ";".join(v.strip().upper().removeprefix("FORMAT_") for v in value.strip('"').replace("|", ";").split(";")))


def shapes(cell: pl.Expr) -> pl.Expr:
    """Shapes without quotation marks, brackets and blanks: '64,1024;1024,1024'."""
    return cell.str.replace_all(r"[\"'\[\]() ]", "")


def type_of(name: str) -> str:
    """The operator type that a kernel's name gives, for files that do not say: 'aclnnAdd_AddAiCore_Add' is an Add, 'trans_TransData_7' a TransData."""
    if name.startswith(("hcom_", "Hccl", "hccl")):
        head = name.split("__", maxsplit=1)[0].rstrip("_0123456789")
        return head + "_" if name.startswith("hcom_") else head
    parts = [p for p in name.rsplit("/", maxsplit=1)[-1].split("_") if p]
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    if not parts:
        return name
    if parts[0].startswith("aclnn") and len(parts) == 1:
        return parts[0][5:].rstrip("0123456789") or name
    last = parts[-1]
    return last if last[-2:] in ("V2", "V3", "V4", "V5") else last.rstrip("0123456789") or last


def derive_types(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill in missing types from the names."""
    gaps = frame.filter(pl.col("type").is_null())
    if gaps.is_empty():
        return frame
    mapping = {n: type_of(n) for n in gaps["name"].unique().to_list()}
    return frame.with_columns(type=pl.coalesce("type", pl.col("name").replace_strict(mapping, default=None, return_dtype=pl.Utf8)))


def category() -> pl.Expr:
    """kernel, communication, copy or sync, by device and type."""
    device, kind, name = pl.col("device").fill_null("").str.to_uppercase(), pl.col("type").fill_null(""), pl.col("name").fill_null("")
    return (
        pl.when(device.is_in(COMMUNICATION) | kind.str.contains(r"(?i)^(hcom_|hccl)") | name.str.contains(r"(?i)^(hcom_|hccl)")).then(pl.lit("communication"))
        .when(device.is_in(COPIES) | kind.str.contains(r"(?i)^memcpy")).then(pl.lit("copy"))
        .when(device.is_in(WAITS)).then(pl.lit("sync"))
        .otherwise(pl.lit("kernel"))
    )
