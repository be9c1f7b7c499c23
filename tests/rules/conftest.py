"""Rules look at a target's name and families alone, so a target by its name is enough for them, whether its compiler is installed or not."""

import inspect

import pytest

from npulift import rules
from npulift.model import ModelSpec
from npulift.targets.base import Target
from npulift.tracing import capture


class Named(Target):
    """A target that can do nothing but be asked for its name."""

    def __init__(self, name):
        super().__init__(name)
        self.families = (name.partition(":")[0], name.partition("-")[0])

    def compile(self, source, options, folder):
        raise NotImplementedError

    def load(self, folder, options):
        raise NotImplementedError


@pytest.fixture
def look():
    """look(module, inputs, target, dims) → findings of every rule."""

    def run(module, inputs, target="ascend-910b2", dims=None):
        return list(rules.findings(capture(ModelSpec(module, inputs, dynamic_dims=dims or {})), Named(target)))

    return run


@pytest.fixture
def only(look):
    """The findings of one code."""

    def run(code, *arguments, **options):
        return [f for f in look(*arguments, **options) if f.code == code]

    return run


@pytest.fixture
def line_in():
    """Number of the line of a class's source that holds a text."""

    def run(cls, text):
        source, start = inspect.getsourcelines(cls)
        return start + next(i for i, s in enumerate(source) if text in s)

    return run
