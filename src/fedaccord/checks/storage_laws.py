"""Laws about state that leaves the process: over the wire, onto the disk, and through a resume."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load, load_file, save

from fedaccord.aggregation.trust import TrustState
from fedaccord.checks.law import Breach
from fedaccord.checks.trial import ROUNDS, Trial, make_task, prepare_trial, traced, with_batch_norm_and_dropout
from fedaccord.checks.watched import first_difference
from fedaccord.core.arrays import save_arrays
from fedaccord.core.state import from_arrays, to_arrays
from fedaccord.runs import Record, Remembered, RunFolder
from fedaccord.runtime.options import RuntimeOptions

HALF = ROUNDS // 2
TREES = "Build state from tensors, NamedTuples and dicts of them, and ()"


def round_trip(trial: Trial) -> None:
    """Server, broadcast, uploads and clients' state come back from disk and wire to the bit."""
    trace, method = trial.straight, trial.algorithm
    first = trace.server(0)
    pairs: list[tuple[str, Any, Any]] = []
    for t in range(1, ROUNDS + 1):
        server = trace.server(t)
        pairs += [("the server's state", server, first), ("what is sent", method.broadcast(server), method.broadcast(first))]
        pairs += [("an upload", upload, trace.prepared.federation.trust.guard.template) for upload in trace.uploads[t - 1].values()]
        pairs += [("what a client keeps", trace.kept(t, client), trace.kept(0, client)) for client in trace.states[t - 1]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.safetensors"
        for what, tree, like in pairs:
            arrays = to_arrays(tree)
            save_arrays(arrays, file)
            wire = load(save({name: array.clone().contiguous() for name, array in arrays.items()}))
            for way, back in (("disk", load_file(file)), ("wire", wire)):
                lost = first_difference(from_arrays(like, back), tree)
                if lost is not None:
                    raise Breach(f"{what} comes back from the {way} with another {lost or type(tree).__name__}", TREES)


def resume(trial: Trial) -> None:
    """A run that is saved and restored half way is the unbroken one, with clients' state in memory and on disk."""
    for store in ("memory", "disk"):
        with tempfile.TemporaryDirectory() as place:
            second_half = _resumed(trial, Path(place) / "run", store)
        for t, (mine, theirs) in enumerate(zip(second_half, trial.straight.bits()[HALF:], strict=True), start=HALF + 1):
            if mine != theirs:
                seen = f"resumed after round {HALF} with clients' state in {store}, round {t} is another one"
                raise Breach(seen, "Keep all state in what init_server and init_client give")


def _resumed(trial: Trial, folder: Path, store: Any) -> list[Any]:
    """The bits of the second half, in a federation put together anew."""
    task = make_task(with_batch_norm_and_dropout)
    options: dict[str, Any] = {"folder": folder, "runtime": RuntimeOptions("sequential", state=store)}
    begun = prepare_trial(trial.algorithm, task, **options)
    disk = RunFolder.create(folder, Record({"run": {"rounds": ROUNDS}}))
    try:
        state = begun.start
        for result in begun.federation.run(state):
            state = result.state
            if state.round == HALF:
                break
        runtime = begun.federation.runtime
        trust = Remembered(*state.trust)
        disk.checkpoint(HALF, {"server": state.server, "buffers": state.buffers}, trust, runtime.save, runtime.committed)
        anew = prepare_trial(trial.algorithm, task, **options)
        like = {"server": anew.start.server, "buffers": anew.start.buffers}
        round, parts, trust = disk.restore(like, Remembered(*anew.start.trust), anew.federation.runtime.restore)
        return traced(anew, start=anew.start._replace(round=round, trust=TrustState(*trust), **parts)).bits()
    finally:
        disk.close()
