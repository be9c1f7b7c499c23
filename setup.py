"""Compiles the message catalogues while the package is built; everything else about the build stands in pyproject.toml."""

from pathlib import Path

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithCatalogues(build_py):
    def run(self):
        for po in Path("src/npulift/locale").glob("*/LC_MESSAGES/*.po"):
            with po.open("rb") as source, po.with_suffix(".mo").open("wb") as compiled:
                write_mo(compiled, read_po(source))
        super().run()


setup(cmdclass={"build_py": BuildWithCatalogues})
