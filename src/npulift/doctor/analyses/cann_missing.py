"""CANN's libraries cannot be found: not sourced, or not installed at all."""

from __future__ import annotations

from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _


class CannMissing:
    """Works on signatures and facts."""

    literals: tuple[str, ...] = ()
    limit = 1

    def line(self, line: Line) -> None:
        """Nothing of its own."""

    def causes(self, found: Found) -> Iterator[Cause]:
        """What the listing of the installation folder says decides."""
        if not found.has("cann-library-missing"):
            return
        match = found.matches["cann-library-missing"]
        library = match.groups.get("lib", "libascendcl.so")
        lines = found.take("cann-library-missing")
        for consequence in ("failed-to-infer-device", "torch-npu-import-failed", "pta-resource-not-found"):
            found.linked.setdefault(consequence, set()).add("cann-not-sourced")
        listing, listed = found.facts.ascend_folder or ("", None)
        there = any(word in listing for word in ("ascend-toolkit", "cann", "latest", "nnae", "nnrt"))
        evidence = tuple(dict.fromkeys([*lines, *([listed] if listed else [])]))
        folder = "nnal/atb" if library.startswith("libatb") else "ascend-toolkit"
        source_line = f"source /usr/local/Ascend/{folder}/set_env.sh"
        driver = library in ("libascend_hal.so", "libdrvdsmi_host.so", "libc_sec.so", "libdrvdsmi.so", "libmmpa.so")
        if driver:
            yield Cause(
                "ascend-driver-missing", Severity.ERROR, "high",
                _("{lib} belongs to the Ascend driver, and the loader does not find it: the driver is not installed, or its folder is not mounted into this container or not on LD_LIBRARY_PATH.").format(lib=library),
                (
                    _("export LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64/common:/usr/local/Ascend/driver/lib64/driver:$LD_LIBRARY_PATH"),
                    _("In a container: start it with -v /usr/local/Ascend/driver:/usr/local/Ascend/driver -v /etc/ascend_install.info:/etc/ascend_install.info and the devices (--device /dev/davinci0 --device /dev/davinci_manager --device /dev/devmm_svm --device /dev/hisi_hdc), or with the Ascend docker runtime."),
                    _("On the host: install driver and firmware of the chip, then see `npu-smi info`."),
                ),
                evidence, source="Project-HAMi/HAMi#615; gpustack/gpustack#1378", count=match.count, details={"library": library})
            return
        if listed is not None and not there:
            yield Cause(
                "cann-not-sourced", Severity.ERROR, "high",
                _("{lib} is not found, and the installation folder holds no toolkit: this is not an Ascend machine (or CANN was never installed on it).").format(lib=library),
                (
                    _("On a machine without an NPU remove the import of torch_npu (or set TORCH_DEVICE_BACKEND_AUTOLOAD=0, so that torch does not load it by itself)."),
                    _("On an NPU machine install the CANN toolkit and the kernels of the chip that fit this torch_npu, then source set_env.sh."),
                ),
                evidence, source="vllm-project/vllm-ascend#262; LinZhekai/X-Oscar#4", count=match.count, details={"library": library, "listing": listing})
            return
        known = _("The toolkit folder exists, so the environment is not sourced in this shell or container: {lib} is there but not on the library path.").format(lib=library) if there else _(
            "{lib} is not on the library path: the environment is not sourced in this shell or container, or (when /usr/local/Ascend does not exist) this is not an Ascend machine.").format(lib=library)
        yield Cause(
            "cann-not-sourced", Severity.ERROR, "high", known,
            (
                source_line + ("" if library.startswith("libatb") else _(" (and, where it is installed, source /usr/local/Ascend/nnal/atb/set_env.sh)")),
                _("Make it last: put the line into ~/.bashrc, the service file or the image's entry point; sudo, cron, ssh commands and IDEs start without it."),
                _("If /usr/local/Ascend holds no ascend-toolkit, install the toolkit (with nnal for libatb.so); on a machine without an NPU remove the import of torch_npu."),
            ),
            evidence, more=_("ls /usr/local/Ascend; echo $ASCEND_HOME_PATH $LD_LIBRARY_PATH in the same shell."), source="vllm-project/vllm-ascend#262; vllm-project/vllm-ascend#152; BytePioneer-AI/PaddleOCR-NPU#7",
            count=match.count, details={"library": library, "listing": listing or None})


def new() -> CannMissing:
    """A fresh one."""
    return CannMissing()
