"""Chips are named by number, part or trade name; what the compiler would take as 'run on the CPU' is an error with the list."""

import pytest

from npulift.errors import NpuliftError
from npulift.targets.base import find_target
from npulift.targets.qnn import socs


@pytest.mark.parametrize("name", ["57", "sm8650", "SM8650", "snapdragon-8-gen-3", "Snapdragon 8 Gen 3"])
def test_one_chip_by_all_its_names(name):
    assert socs.find(name).number == 57


def test_qnn_alone_is_a_named_chip_that_takes_float():
    assert (find_target("qnn").soc.name, find_target("qnn").soc.takes_float) == ("snapdragon-x-elite", "full")


def test_the_chip_is_part_of_the_target_name():
    assert find_target("qnn:snapdragon-8-elite").soc.number == 69


@pytest.mark.parametrize("name", ["14", "130", "9999", "snapdragon-9000"])
def test_a_chip_that_the_compiler_does_not_know_is_refused_with_the_list(name):
    with pytest.raises(NpuliftError, match=r"snapdragon-x-elite \(60\)"):
        find_target(f"qnn:{name}")


def test_numbers_of_the_table_are_unique():
    numbers = [s.number for s in socs.known()]
    assert len(numbers) == len(set(numbers))
