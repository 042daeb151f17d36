"""All laws, one by one or at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fedaccord.checks import meaning_laws, rule_laws, run_laws, storage_laws, vector_laws
from fedaccord.checks.law import Breach, Broken, LawError, Verdict
from fedaccord.checks.trial import Ledger, Trial
from fedaccord.core.algorithm import Algorithm
from fedaccord.core.errors import ConfigError, FedaccordError
from fedaccord.tasks.nearest import did_you_mean

LAWS: dict[str, Callable[[Trial], None]] = {
    "state": rule_laws.state,
    "purity": rule_laws.purity,
    "vectorisability": vector_laws.vectorisability,
    "order": run_laws.order,
    "repetition": run_laws.repetition,
    "refusals": run_laws.refusals,
    "small_clients": run_laws.small_clients,
    "finite": run_laws.finite,
    "round_trip": storage_laws.round_trip,
    "resume": storage_laws.resume,
    "neutral": meaning_laws.neutral,
    "ledger": meaning_laws.ledger,
}
FOUNDATIONS = ("state", "purity")  # where one is broken, what the others would see follows from it
NO_EXEMPTIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Law:
    """One law for one method: calling it returns None, or raises `LawError`."""

    name: str
    trial: Trial

    @property
    def says(self) -> str:
        """The law in words."""
        return (LAWS[self.name].__doc__ or "").strip()

    @property
    def why_not_checked(self) -> str:
        """What it would need; empty where it can be checked."""
        needed = {"neutral": self.trial.neutral, "ledger": self.trial.ledger}
        return f"give {self.name}=..." if self.name in needed and needed[self.name] is None else ""

    def __call__(self) -> None:
        try:
            LAWS[self.name](self.trial)
        except Exception as problem:
            raise LawError(type(self.trial.algorithm).__name__, [self._broken(problem)]) from problem

    def __str__(self) -> str:
        return self.name

    def _broken(self, problem: Exception) -> Broken:
        if isinstance(problem, Breach):
            return Broken(self.name, problem.seen, problem.remedy)
        if isinstance(problem, FedaccordError) and problem.code != "E107":
            return Broken(
                self.name, ", ".join(filter(None, (f"{problem.code} {problem.what}", problem.where))), problem.remedy or self.says
            )
        what = f"{problem.what}, {problem.where}" if isinstance(problem, FedaccordError) else f"{type(problem).__name__}: {problem}"
        return Broken(self.name, f"a rule raised {what}", "The traceback says where")


def laws(algorithm: Algorithm, *, neutral: Algorithm | None = None, ledger: Ledger | None = None) -> list[Law]:
    """The laws that can be checked on this method, in the order of `check_algorithm`, whose arguments these are; call each.

    For pytest: ``@pytest.mark.parametrize("law", fa.laws(MyMethod()), ids=str)``, and ``law()`` in the test.
    """
    for name, value in (("algorithm", algorithm), ("neutral", neutral)):
        if not isinstance(value, Algorithm) and not (name == "neutral" and value is None):
            remedy = f"Write {value.__name__}()" if isinstance(value, type) else "Give an instance of a fedaccord.Algorithm"
            raise ConfigError("E202", f"{name} is a {type(value).__name__}", "check_algorithm", remedy)
    trial = Trial(algorithm, neutral, ledger)
    return [law for name in LAWS if not (law := Law(name, trial)).why_not_checked]


def check_algorithm(
    algorithm: Algorithm, *, neutral: Algorithm | None = None, ledger: Ledger | None = None, exempt: Mapping[str, str] = NO_EXEMPTIONS
) -> tuple[Verdict, ...]:
    """Hold a method against every law; raises `LawError` that lists all that it breaks, else says how each law was found.

    neutral: the method with the settings at which it must be FedAvg to the bit. ledger: for a method whose server keeps the mean over all
    clients of a vector that they keep (a dual, a control variate): (server, kept) -> the two vectors. exempt: law -> why this method may
    break it; a law that holds all the same is an error, so that exemptions do not outlive their reason.

    Takes a few seconds. Raises ConfigError E202 or E205 where the arguments are none.
    """
    held = {law.name: law for law in laws(algorithm, neutral=neutral, ledger=ledger)}
    for name in exempt:
        if name not in LAWS:
            raise ConfigError("E205", f"unknown law {name!r}", "exempt", did_you_mean(name, LAWS))
    verdicts: list[Verdict] = []
    broken: list[Broken] = []
    cause: BaseException | None = None
    for name in LAWS:
        if any(each.law in FOUNDATIONS for each in broken):
            break
        if name not in held:
            verdicts.append(Verdict(name, "not checked", f"give {name}=..."))
            continue
        try:
            held[name]()
        except LawError as error:
            if name in exempt:
                verdicts.append(Verdict(name, "exempt", exempt[name]))
            else:
                broken += error.broken
                cause = cause or error.__cause__
        else:
            if name in exempt:
                broken.append(Broken(name, "it holds, and the method is exempt from it", "Take the exemption away"))
            verdicts.append(Verdict(name, "holds"))
    if broken:
        all_of_them = LawError(type(algorithm).__name__, broken)
        if broken[-1].law in FOUNDATIONS:
            all_of_them.add_note("The laws after this one were not looked at: what they would see follows from it.")
        raise all_of_them from cause
    return tuple(verdicts)
