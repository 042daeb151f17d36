"""The error tree. One code, the cause, the place, the remedy.

Every error that a user can meet is a `FedaccordError`, which is a `ValueError`. `str(error)` reads
``E311 what happened. where it happened. what to do.`` The class decides the exit code of the command line; the code names the cause.
"""

from __future__ import annotations

from typing import Any

CODES: dict[str, str] = {
    # 1xx: an upload that the guard refuses, or state that does not fit the model
    "E101": "an upload holds NaN or Inf",
    "E102": "an upload has the wrong shape",
    "E103": "an upload has the wrong dtype",
    "E104": "an upload has missing or unknown fields",
    "E105": "a sample count is not a positive finite number",
    "E106": "a sample count is larger than the task allows",
    "E107": "a client raised an error while it trained",
    "E108": "a client has no data to train on",
    "E109": "a client took no local step",
    "E110": "client state does not fit the algorithm",
    "E111": "an upload was given no weight",
    "E112": "a vector does not fit the model's layout",
    "E113": "training met a non-finite value",
    "E114": "an answer from a client that was not asked, or a second one from the same client",
    "E115": "an upload was seen before",
    "E116": "a screen left an upload out",
    "E117": "an upload belongs to another round",
    "E118": "a report contradicts what the server sees",
    # 2xx: configuration and use
    "E201": "unknown key",
    "E202": "wrong type",
    "E203": "value out of range",
    "E204": "missing key",
    "E205": "unknown name",
    "E206": "the file cannot be read as TOML",
    "E207": "user code cannot be imported",
    "E208": "options that exclude each other",
    "E209": "an optional part is not installed",
    "E210": "no such run",
    "E211": "the target folder is not empty",
    "E212": "the run cannot be resumed",
    "E217": "the task cannot be sent to worker processes",
    "E216": "a method uploads something else than named tensors",
    "E215": "a policy gave weights that do not fit the cohort",
    "E213": "these runs cannot be compared",
    "E214": "the run is not running",
    # 3xx: data, partition, storage
    "E301": "the data file is missing or unreadable",
    "E302": "inputs and labels disagree",
    "E303": "the data hold NaN or Inf",
    "E304": "a column is missing",
    "E305": "the data set is empty",
    "E306": "labels are not what the task needs",
    "E307": "the data do not fit in memory",
    "E308": "a column cannot be used as an input",
    "E311": "the partition cannot be made",
    "E312": "more clients than examples",
    "E313": "the partition needs something that the task lacks",
    "E314": "the partition gives an example to two clients",
    "E321": "the disk is full",
    "E322": "a file of the run is damaged",
    "E323": "the folder cannot be written",
    # 4xx: network and authorisation
    "E401": "the other side cannot be reached",
    "E402": "a message is malformed",
    # 5xx: deadlines
    "E501": "the deadline has passed",
    # 6xx: the run is fine and the answer is no
    "E601": "the target was not reached",
    "E602": "no trial of a tuning could be measured",
    # 7xx: faults of ours, or of the machine
    "E701": "a fault of ours",
    "E702": "a worker process died",
}


class FedaccordError(ValueError):
    """Base of all errors that a user may see.

    Parameters: `code` one of `CODES`; `what` the cause, with figures; `where` the place (client, round, file, key); `remedy` what to do.
    """

    exit_code = 70

    def __init__(self, code: str, what: str, where: str = "", remedy: str = "") -> None:
        assert code in CODES, f"unregistered error code {code}"
        self.code, self.what, self.where, self.remedy = code, what, where, remedy
        parts = (part.rstrip(".") for part in (what, where, remedy) if part)
        text = " ".join(part if part.endswith(("?", "!")) else f"{part}." for part in parts)
        super().__init__(f"{code} {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        """From one process to another; by default Python calls the class with the text alone."""
        return _remade, (type(self), self.args, self.__dict__)

    def record(self) -> dict[str, str]:
        """The error as plain data, for `--json` and the run's records."""
        return {"code": self.code, "what": self.what, "where": self.where, "remedy": self.remedy}


class ConfigError(FedaccordError):
    """The experiment, the command line or the call is wrong."""

    exit_code = 2


class DataError(FedaccordError):
    """The data are missing, damaged or do not fit the task."""

    exit_code = 3


class PartitionError(DataError):
    """The asked partition does not exist for these data."""


class StorageError(DataError):
    """The run's folder cannot be written or read."""


class NetworkError(FedaccordError):
    """The other side cannot be reached, or refuses us."""

    exit_code = 4


class DeadlineError(FedaccordError):
    """Too late."""

    exit_code = 5


class NegativeAnswer(FedaccordError):
    """The run is fine and the answer is no."""

    exit_code = 6


class UploadError(FedaccordError):
    """An upload that the guard refuses. Never fatal: the round records it and goes on.

    `reason` is one of the closed list in `REASONS`.
    """

    def __init__(self, code: str, reason: str, what: str, where: str = "", remedy: str = "") -> None:
        assert reason in REASONS, f"unregistered reason {reason}"
        self.reason = reason
        super().__init__(code, what, where, remedy)


class NonFiniteError(FedaccordError):
    """Training met the first NaN or Inf (debug mode). Names client, round and step."""

    exit_code = 3


class InternalFault(FedaccordError):
    """A fault of ours: please report it."""

    exit_code = 70


class WorkerDied(FedaccordError):
    """A process that trained clients died: killed, or brought down by native code. The run can be resumed."""

    exit_code = 70


def _remade(kind: type[FedaccordError], text: tuple[Any, ...], parts: dict[str, Any]) -> FedaccordError:
    error = kind.__new__(kind, *text)
    error.__dict__.update(parts)
    return error


REASONS = (
    "not_asked",
    "duplicate",
    "non_finite",
    "wrong_shape",
    "wrong_dtype",
    "wrong_fields",
    "bad_count",
    "count_too_large",
    "client_error",
    "no_data",
    "no_steps",
    "no_weight",
    "stale",
    "replayed",
    "copied",
    "contradiction",
    "norm_jump",
    "opposed",
    "no_update",
    "not_selected",
    "no_trust",
)
