"""errors.py: one code, the cause, the place, the remedy."""

from __future__ import annotations

import pytest

from fedaccord.core import errors
from fedaccord.core.errors import CODES, REASONS, ConfigError, DataError, FedaccordError, InternalFault, UploadError


def test_an_error_reads_as_code_what_where_remedy() -> None:
    error = ConfigError("E203", "rho is -1", "algorithm.rho", "Give a number above 0.")
    assert str(error) == "E203 rho is -1. algorithm.rho. Give a number above 0."
    assert error.record() == {"code": "E203", "what": "rho is -1", "where": "algorithm.rho", "remedy": "Give a number above 0."}


def test_a_question_keeps_its_mark() -> None:
    assert str(ConfigError("E205", "unknown method 'fedporx'", remedy="Did you mean 'fedprox'?")).endswith("Did you mean 'fedprox'?")


def test_every_error_is_a_value_error_with_an_exit_code_of_the_documented_ones() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, FedaccordError)]
    assert len(kinds) > 8
    for kind in kinds:
        assert issubclass(kind, ValueError) and kind.exit_code in {2, 3, 4, 5, 6, 70}
    assert (ConfigError.exit_code, DataError.exit_code, InternalFault.exit_code) == (2, 3, 70)


def test_a_code_or_reason_that_is_not_in_the_list_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="E999"):
        FedaccordError("E999", "x")
    with pytest.raises(AssertionError, match="because"):
        UploadError("E101", "because", "x")


def test_codes_have_their_form_and_reasons_are_closed() -> None:
    assert all(code[0] == "E" and len(code) == 4 and code[1:].isdigit() for code in CODES)
    assert len(set(REASONS)) == len(REASONS)
    assert all(" " not in reason for reason in REASONS)
