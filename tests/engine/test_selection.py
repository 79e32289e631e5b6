"""Which round is the best, on which data that is decided, and what is reported of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gossamer import Data, FedAvg, Key, Options, Summary, run
from gossamer.engine import Run, start
from gossamer.engine.checkpoint import Unusable
from gossamer.engine.evaluate import MEMORY, Evaluator, mark
from gossamer.engine.events import Evaluated, read
from gossamer.engine.files import seal_json, unseal_json
from gossamer.engine.options import Select
from gossamer.engine.store import Store
from gossamer.engine.summary import UNKNOWN, best
from gossamer.engine.workers import Workers
from gossamer.methods.fedavg import Server
from gossamer.methods.parts.dense_model import Local
from gossamer.wire import dump, record_types
from helpers import Toy, fedavg, linear, mlp, normed, server_ctx

VALID = Options(select="valid")


class Holding(Toy):
    """Clients that hold back some examples; every third one none."""

    def client(self, id: int) -> Data:
        held = self.make(Key(7).fold(id, "valid"), 0 if id % 3 == 2 else 8 + id)
        return replace(super().client(id), valid=held)


def figures(
    round: int,
    shared: float | None,
    personal: float | None,
    valid: float | None = None,
    density: float | None = None,
) -> Evaluated:
    worst = None if personal is None else personal / 2
    return Evaluated(round, shared, None, personal, None, worst, 0, valid, density)


def after(select: Select, *found: Evaluated) -> dict[str, float | None]:
    """The figures after some evaluations; the density falls by a tenth a round."""
    accuracy: dict[str, float | None] = {}
    for each in found:
        accuracy = best(accuracy, each, 1 - each.round / 10, select)
    return accuracy


# which round ------------------------------------------------------------------------------------


def test_the_best_figures_stay_beside_the_last() -> None:
    accuracy = after("test", figures(0, 0.2, 0.5), figures(1, 0.6, 0.4), figures(2, 0.3, 0.3))
    assert accuracy["global"] == 0.3 and accuracy["personal_mean"] == 0.3
    assert accuracy["global_best"] == accuracy["best"] == 0.6
    assert accuracy["personal_best"] == 0.5 and accuracy["best_round"] == 1
    assert accuracy["best_worst_decile"] == 0.2 and accuracy["personal_worst_decile"] == 0.15
    assert accuracy["best_density"] == 0.9


def test_a_global_model_that_is_never_right_is_still_the_one_reported() -> None:
    accuracy = after("test", figures(0, 0.0, 0.5))
    assert accuracy["best"] == 0.0 and accuracy["best_round"] == 0


def test_without_a_global_figure_the_personal_one_is_best() -> None:
    accuracy = after("test", figures(0, None, 0.5), figures(3, None, 0.7))
    assert accuracy["best"] == 0.7 and accuracy["best_round"] == 3


def test_personal_models_are_what_a_run_is_judged_by_once_there_are_any() -> None:
    """Before the first round nobody has one; the best of all global models is no rival then."""
    start = figures(0, 0.9, 0.8)
    trained = [figures(n, 0.1, p, None, 0.5) for n, p in ((1, 0.4), (2, 0.7), (3, 0.6))]
    assert after("test", start)["best"] == 0.9
    accuracy = after("test", start, *trained)
    assert (accuracy["best"], accuracy["best_round"]) == (0.7, 2)
    assert accuracy["best_worst_decile"] == 0.35
    assert accuracy["best_density"] == 0.8 and accuracy["best_personal_density"] == 0.5
    assert accuracy["global_best"] == 0.9 and accuracy["personal_best"] == 0.8


def test_a_round_chosen_on_validation_data_is_reported_with_its_test_figures() -> None:
    found = [
        figures(1, 0.5, 0.9, 0.3),
        figures(2, 0.6, 0.4, 0.8),
        figures(3, 0.9, 0.7, 0.8),  # no better than the one before on validation data
        figures(4, 0.7, 0.5, 0.1),
    ]
    accuracy = after("valid", *found)
    assert accuracy["best_round"] == 2 and accuracy["valid_best"] == 0.8
    assert accuracy["best"] == accuracy["global_best"] == 0.6
    assert accuracy["personal_best"] == 0.4 and accuracy["best_worst_decile"] == 0.2
    assert accuracy["best_density"] == 0.8
    assert accuracy["global"] == 0.7 and accuracy["valid_mean"] == 0.1
    assert after("test", *found)["best_round"] == 3


def test_the_validation_data_choose_among_personal_models() -> None:
    found = [figures(0, 0.9, 0.9, 0.9), *(figures(n, 0.1, n / 10, 0.5, 0.3) for n in (1, 2))]
    accuracy = after("valid", *found)
    assert (accuracy["best"], accuracy["best_round"]) == (0.1, 1)
    assert accuracy["personal_best"] == accuracy["global_best"] == 0.1


def test_personal_models_that_nobody_can_test_leave_the_global_one() -> None:
    accuracy = after("test", figures(1, 0.6, None, None, 0.5))
    assert accuracy["best"] == 0.6 and accuracy["best_personal_density"] == 0.5


def test_figures_of_an_older_run_are_gone_on_from() -> None:
    old = {"global": 0.5, "global_best": 0.8, "personal_best": 0.4, "best": 0.8, "best_round": 6}
    accuracy = best(old, figures(7, 0.7, 0.5), 0.3)
    assert (accuracy["best"], accuracy["best_round"]) == (0.8, 6)
    assert accuracy["best_density"] is None and accuracy["personal_best"] == 0.5
    assert accuracy.keys() == UNKNOWN.keys()


# on which data ----------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2], ids=["alone", "two workers"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    found = Workers(normed(), request.param)
    yield found
    found.close()


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("memory", [MEMORY, 0])
def test_the_validation_figure_is_the_mean_over_clients_that_hold_data_back(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: bool, memory: int
) -> None:
    """Client 4 has statistics of its own; everyone else is tried with the global model."""
    monkeypatch.setattr("gossamer.engine.evaluate.MEMORY", memory)
    task, federation = normed(), Holding(rows=rows)
    method = FedAvg(buffers="local")
    state, local = Server(task.init(Key(1))), Local({n: t + 4 for n, t in task.buffers().items()})
    store = Store(tmp_path, record_types(method))
    store.put(4, 1, dump(local))
    ctx = server_ctx(task)
    evaluate = Evaluator(Run(method, task, federation, rounds=10, options=VALID), workers)
    found = evaluate(ctx, state, store)
    each = [
        mark(
            task, method.model(ctx, state, local if id == 4 else None), federation.client(id).valid
        )
        .numbers["accuracy"]
        .mean()
        for id in (0, 1, 3, 4)
    ]
    assert found.valid_mean == pytest.approx(np.mean(each))
    assert found.valid_mean != found.personal_mean and found.clients == 6
    federation.asked.clear()
    assert evaluate(ctx, state, store) == found
    # Gathered again only where there is no room; client 4's model has not changed at all.
    assert sorted(set(federation.asked)) == ([] if memory else [0, 1, 2, 3, 5])
    plain = Evaluator(Run(method, task, federation, rounds=10, options=Options()), workers)(
        ctx, state, store
    )
    assert plain.valid_mean is None
    assert replace(found, valid_mean=None) == plain


def test_a_run_reports_the_round_that_its_log_says_is_best(tmp_path: Path) -> None:
    summary = run(fedavg(lr=0.3), mlp(), Holding(), rounds=8, out=tmp_path, options=VALID)
    log = [e for e in read(tmp_path / "events.jsonl") if e["event"] == "evaluated"]
    top = max(log, key=lambda event: event["valid_mean"])
    accuracy = summary.accuracy
    assert summary.select == "valid" and summary.figures()["select"] == "valid"
    assert (accuracy["best_round"], accuracy["best"]) == (top["round"], top["global_accuracy"])
    assert accuracy["best_worst_decile"] == top["personal_worst_decile"]
    assert accuracy["personal_best"] == top["personal_mean"] and accuracy["best_density"] == 1.0
    assert accuracy["valid_best"] == top["valid_mean"] > log[0]["valid_mean"]
    finished = read(tmp_path / "events.jsonl")[-1]
    assert finished["select"] == "valid" and finished["accuracy"] == accuracy


def test_the_data_that_choose_a_round_change_nothing_else(tmp_path: Path) -> None:
    found = {}
    for select in ("test", "valid"):
        out = tmp_path / select
        options = Options(select=select)  # type: ignore[arg-type]
        found[select] = run(fedavg(), mlp(), Holding(), rounds=3, out=out, options=options)
    assert found["test"].state_hash == found["valid"].state_hash
    for name in ("global", "personal_mean", "personal_worst_decile"):
        assert found["test"].accuracy[name] == found["valid"].accuracy[name]


def go_on(out: Path, options: Options, resume: bool = True, rounds: int = 4) -> Summary:
    return start(
        Run(fedavg(), mlp(), Holding(), rounds=rounds, out=out, options=options), resume=resume
    )


def test_a_run_is_not_resumed_with_other_data_to_choose_by(tmp_path: Path) -> None:
    whole = go_on(tmp_path, VALID, resume=False)
    assert go_on(tmp_path, VALID).accuracy == whole.accuracy
    with pytest.raises(Unusable, match="other settings"):
        go_on(tmp_path, Options())


def test_a_run_whose_checkpoint_lacks_the_new_figures_is_resumed(tmp_path: Path) -> None:
    """As one that was written before they were kept."""
    whole = go_on(tmp_path, Options(checkpoint_every=1), resume=False)
    newest = sorted((tmp_path / "rounds").iterdir())[-1]
    (newest / "meta.json").unlink()
    meta = tmp_path / "rounds" / "000003" / "meta.json"
    saved = unseal_json(meta)
    known = saved["progress"].pop("scores")
    names = ("global", "global_best", "personal_mean", "personal_std", "personal_worst_decile")
    older = (*names, "personal_best", "best", "best_round")
    saved["progress"]["accuracy"] = {name: known[name] for name in older}
    meta.write_bytes(seal_json(saved))
    again = go_on(tmp_path, Options())
    assert again.state_hash == whole.state_hash
    assert all(again.accuracy[name] == whole.accuracy[name] for name in older)


# refusals ---------------------------------------------------------------------------------------


class Described(Toy):
    """A federation whose facts tell how much is held back."""

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "valid": 0}


@pytest.mark.parametrize("federation", [Toy(), Described()], ids=["asked", "described"])
def test_nothing_can_be_chosen_on_data_that_nobody_holds_back(federation: Toy) -> None:
    with pytest.raises(ValueError, match=r"no client has any; add e\.g\. `valid=0\.1`"):
        run(fedavg(), linear(), federation, rounds=1, options=VALID)
    assert bool(federation.asked) != isinstance(federation, Described)


def test_validation_data_belong_to_personal_figures() -> None:
    options = replace(VALID, personal=False)
    with pytest.raises(ValueError, match="`personal=False` leaves out; use one of the two"):
        run(fedavg(), linear(), Holding(), rounds=1, options=options)


def test_a_run_that_evaluates_nothing_needs_no_validation_data() -> None:
    options = replace(VALID, eval_every=0)
    assert run(fedavg(), linear(), Toy(), rounds=1, options=options).accuracy["best"] is None
