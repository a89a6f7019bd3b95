"""Seeded faults: do the tests notice?

    python -m tests.faults [--only NAME ...] [--jobs N]

Each fault is one small, plausible mistake: a text of one file and what stands there by mistake. It
is made in a temporary copy of the package, never in the working tree, and the named tests run there
until one fails. Prints `caught` with that test, or `MISSED`; exit 1 where a fault is missed, or its
text is not found exactly once. First they run on an unchanged copy, where they must pass.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests import plugin_faults, privacy_faults
from tests.privacy_faults import Fault

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("dpfl_cli", "conf", "docs", "tests", "pyproject.toml", "README.md")
IMPORTED_ONCE = ("dp_accounting", "hypothesis", "numba", "pandas", "scipy.stats", "torch")


FAULTS = [
    # privacy
    Fault(
        "a clip's sensitivity under replace_one is C",
        "privacy/bounded.py",
        "        2 * bound,\n",
        "        bound,\n",
        "privacy/test_bounded.py",
    ),
    Fault(
        "a record moves a mean by C / m when replaced",
        "privacy/record_bounds.py",
        "return bounded(inside, bound, moved + moved, moved,",
        "return bounded(inside, bound, moved, moved,",
        "models/test_gradients.py::test_gradients_norms_and_clipped_means_are_those_of_the_records",
    ),
    Fault(
        "a client's share of the noise is divided by sqrt(M) twice",
        "privacy/gaussian.py",
        "share = std / math.sqrt(clients)\n",
        "share = std / math.sqrt(clients) / math.sqrt(clients)\n",
        "privacy/test_gaussian.py",
    ),
    Fault(
        "the sensitivity of clients that differ is their mean",
        "privacy/mechanism.py",
        "else sensitivity.amax(dim=1)",
        "else sensitivity.mean(dim=1)",
        "privacy/test_gaussian.py",
    ),
    Fault(
        "releases of a run's first round are not charged",
        "privacy/ledger.py",
        "= before + charged",
        "= before + (charged & (rounds > 1))",
        "privacy/test_ledger.py::test_constant_noise_is_one_number_and_a_count",
    ),
    Fault(
        "one release too few is charged where parts are disjoint",
        "privacy/ledger.py",
        "return -(-self.count // self.disjoint)",
        "return self.count // self.disjoint",
        "privacy/test_subsampling.py::test_disjoint_parts_cost_what_one_does",
    ),
    Fault(
        "the second release of a round takes the noise of the next round",
        "privacy/mechanism.py",
        "rounds * spec.per_round + np.minimum",
        "rounds + np.minimum",
        "privacy/test_door.py",
    ),
    Fault(
        "a Gaussian release is 1 / z^2 zero-concentrated",
        "privacy/kinds.py",
        "return self.squared_mu(entries) / 2",
        "return self.squared_mu(entries)",
        "privacy/test_accountants.py",
    ),
    Fault(
        "Renyi's conversion divides by the order, not by the order less one",
        "privacy/mixed_accountants.py",
        "toll = (math.log(delta) + np.log1p(excess)) / excess",
        "toll = (math.log(delta) + np.log1p(excess)) / (1 + excess)",
        "privacy/test_accountants.py",
    ),
    Fault(
        "half the first term of the amplification by subsampling",
        "privacy/subsampling.py",
        "np.log(4.0) + np.log(np.expm1(second))",
        "np.log(2.0) + np.log(np.expm1(second))",
        "privacy/test_subsampling.py",
    ),
    Fault(
        "many levels of noise count as the next larger ones",
        "privacy/mixed_accountants.py",
        "taken = min(z, first * STEP**power)",
        "taken = max(z, first * STEP ** (power + 1))",
        "privacy/test_subsampling.py",
    ),
    Fault(
        "batches are amplified, and the whole releases beside them are free",
        "privacy/mixed_accountants.py",
        "total = _renyi([one for one in entries if one not in of_batches], excess)",
        "total = np.zeros_like(excess)",
        "privacy/test_subsampling.py",
    ),
    Fault(
        "records are in a Poisson batch more often than it is priced by",
        "privacy/draws.py",
        "found = draws < on_device(size / held, device).unsqueeze(-1)",
        "found = draws < on_device(2 * size / held, device).unsqueeze(-1)",
        "privacy/test_poisson_batches.py",
    ),
    Fault(
        "a mean over a Poisson batch is divided by its rows, and its noise made for those",
        "privacy/draws.py",
        "return records_of(batch).shape[-1] / batch.size",
        "return 1.0",
        "privacy/test_poisson_batches.py",
    ),
    Fault(
        "any batch will do for a release that is priced as a Poisson one",
        "privacy/releases.py",
        'law = spec.batch if spec.disjoint == 1 else "part"',
        'law = values.batch.law if values.batch and spec.disjoint == 1 else "part"',
        "privacy/test_poisson_batches.py",
    ),
    Fault(
        "rdp amplifies batches under every relation",
        "privacy/accountants.py",
        "known = of_records and entry.relation in cls.amplifies_batches.get(entry.batch, ())",
        "known = of_records and bool(cls.amplifies_batches.get(entry.batch))",
        "privacy/test_subsampling.py",
    ),
    Fault(
        "a mean and its squared norm priced as if one client moved the mean by C",
        "privacy/gaussian_accountants.py",
        "ratio = (2 * vector / scalar) ** 2",
        "ratio = (vector / scalar) ** 2",
        "privacy/test_accountants.py",
    ),
    Fault(
        "calibrated noise is rounded down",
        "simulation/noise.py",
        "rounding=ROUND_FLOOR if increasing else ROUND_CEILING",
        "rounding=ROUND_CEILING if increasing else ROUND_FLOOR",
        "privacy/test_nominal.py",
    ),
    Fault(
        "the damping is missing where a record moves the inverse",
        "privacy/record_bounds.py",
        "matrix = limit * second / (gamma * (gamma * records + limit))",
        "matrix = limit * second / (gamma * records + limit)",
        "privacy/test_second_order_privacy.py::test_hostile_neighbours_come_near_the_sensitivity",
    ),
    Fault(
        "the clients of a run may become one",
        "privacy/client_values.py",
        "if isinstance(part, Tensor) and part.shape[:2] != own[0]:",
        "if isinstance(part, Tensor) and part.shape[:1] != own[0][:1]:",
        "privacy/test_door.py",
    ),
    Fault(
        "what is released without a bound is planned",
        "simulation/checks.py",
        'if UNLIMITED in field.metadata and plan.dp.trust != "none":',
        "if False:",
        "algorithms/test_shared.py::test_what_is_released_without_a_bound_is_refused_where_it_is_private",
    ),
    # algorithms
    Fault(
        "the sign of SCAFFOLD's control variates",
        "algorithms/scaffold.py",
        'drift = control.unsqueeze(1) - state.clients["control"]',
        'drift = state.clients["control"] - control.unsqueeze(1)',
        "algorithms/test_scaffold.py",
    ),
    Fault(
        "ScaffNew's control forgets what was left out of the message",
        "algorithms/scaffnew.py",
        "(release.mean.unsqueeze(1) - (kept + inside))",
        "(release.mean.unsqueeze(1) - kept)",
        "algorithms/test_scaffnew.py::test_equals_its_lines",
    ),
    Fault(
        "FedEXP's server step may fall below one",
        "algorithms/fedexp.py",
        ".clamp(min=1.0)",
        ".clamp(min=0.0)",
        "algorithms/test_fedexp.py",
    ),
    Fault(
        "FedEXP's squared norm gets the noise of zero_out",
        "algorithms/fedexp.py",
        "4 * run.dimension / run.cohort",
        "run.dimension / run.cohort",
        "algorithms/test_fedexp.py privacy/test_gaussian.py",
    ),
    Fault(
        "FedNew solves without its penalty",
        "algorithms/fednew.py",
        "self._shift = hyper.damping + hyper.penalty",
        "self._shift = hyper.damping",
        "algorithms/test_fednew.py",
    ),
    Fault(
        "the sign of the duals' step",
        "algorithms/fednew.py",
        "(own - direction.unsqueeze(1))",
        "(direction.unsqueeze(1) - own)",
        "algorithms/test_fednew.py",
    ),
    Fault(
        "the sign of the duals' step at record level",
        "algorithms/fednew_record.py",
        "(own - release.mean.unsqueeze(1))",
        "(release.mean.unsqueeze(1) - own)",
        "algorithms/test_fednew.py",
    ),
    Fault(
        "AdaptDP's offset is for noise that does not average over clients",
        "algorithms/adaptdp.py",
        "squares = squares / clients\n",
        "squares = squares / 1\n",
        "algorithms/test_adaptdp.py",
    ),
    Fault(
        "a gradient of batches is clipped after its mean",
        "algorithms/record.py",
        'if hyper.clipping == "record":',
        'if hyper.clipping == "record" and batch is None:',
        "algorithms/test_adaptdp.py::test_steps_on_batches_equal_their_lines",
    ),
    Fault(
        "local steps of one round draw the batches of the next",
        "algorithms/local.py",
        "first = (at.number - 1) * steps + 1",
        "first = at.number",
        "algorithms/test_minibatches.py",
    ),
    Fault(
        "the primal-dual method's copies move apart",
        "algorithms/primal_dual.py",
        "objective.prox(message - gamma * apart,",
        "objective.prox(message + gamma * apart,",
        "algorithms/test_primal_dual.py",
    ),
    # models
    Fault(
        "the gradient of a perceptron's biases is dropped",
        "models/passes.py",
        "torch.cat((weights, matrix[..., self.inputs]), dim=-1)",
        "torch.cat((weights, 0.0 * matrix[..., self.inputs]), dim=-1)",
        "models/test_gradients.py::test_gradients_norms_and_clipped_means_are_those_of_the_records",
    ),
    Fault(
        "softmax regression's l2 is missing in its gradient",
        "models/layer_loops.py",
        "decay = l2[run] if records > 0 else 0.0",
        "decay = 0.0",
        "models/test_gradients.py::test_gradients_norms_and_clipped_means_are_those_of_the_records",
    ),
    Fault(
        "conjugate gradients solve with the Hessian alone",
        "models/single_layer.py",
        "lambda v: times(v).addcmul_(v, damping), side",
        "times, side",
        "models/test_curvature.py::test_a_damped_solve_equals_the_matrices_written_out",
    ),
    Fault(
        "the sign of a one-record client's drift",
        "models/layer_loops.py",
        "z -= turn",
        "z += turn",
        "models/test_linear.py",
    ),
    Fault(
        "the soft threshold does not shrink with the step",
        "models/prox.py",
        "(v.abs() - step * self.weight)",
        "(v.abs() - self.weight)",
        "models/test_prox.py",
    ),
    Fault(
        "a network's own step size is another run's",
        "models/objective.py",
        "rate, parameters = per_run(learning_rate, begin),",
        "rate, parameters = learning_rate.to(start.dtype)[0],",
        "models/test_gradients.py::test_local_descent_takes_plain_steps",
    ),
    Fault(
        "metrics are averaged over records, not over clients",
        "models/client_mean.py",
        "shares[counted] = 1.0 / totals[counted] / len(counted)",
        "shares[counted] = 1.0 / totals[counted].sum()",
        "models/test_client_mean.py",
    ),
    Fault(
        "a quantile of squared norms is the record below",
        "models/quantiles.py",
        "-(-percent * len(ordered) // 100) - 1",
        "percent * len(ordered) // 100 - 1",
        "models/test_quantiles.py::test_the_definition_by_hand",
    ),
    # simulation
    Fault(
        "a checkpoint forgets the round",
        "simulation/member.py",
        '    "round",\n    "rows",\n',
        '    "rows",\n',
        "simulation/test_engine.py",
    ),
    Fault(
        "a result is published before its files",
        "data/files.py",
        "    for path, content in written.items():\n"
        "        _write(path, content)\n"
        "    # a disk that gets all at once writes them in one go\n"
        "    in_threads(_sync, zip((*written, *folders)), 8)\n"
        "    if os.path.lexists(target):\n"
        "        shutil.rmtree(old, ignore_errors=True)\n"
        "        target.rename(old)\n"
        "    new.rename(target)\n",
        "    if os.path.lexists(target):\n"
        "        shutil.rmtree(old, ignore_errors=True)\n"
        "        target.rename(old)\n"
        "    new.rename(target)\n"
        "    for name, content in files.items():\n"
        "        _write(target / name, content)\n",
        "simulation/test_store.py",
    ),
    Fault(
        "all random streams of a run are one",
        "data/streams.py",
        "spawn_key = (zlib.crc32(name.encode()), *key)",
        "spawn_key = (0, *key)",
        "data/test_streams.py::test_subsets_of_different_addresses_are_independent",
    ),
    Fault(
        "a component's revision is no part of a run's identity",
        "simulation/run_plan.py",
        '"revision": self.component.revision, ',
        "",
        "test_golden.py",
    ),
    Fault(
        "two processes may compute the same run",
        "simulation/store.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "simulation/test_store.py::test_a_lock_keeps_a_second_process_out",
    ),
    Fault(
        "a result is lost where its replacement was killed between two renames",
        "simulation/store.py",
        'if not target.exists() and (unfinished / "replaced").exists():',
        "if False:",
        "simulation/test_store.py::test_a_kill_while_a_result_is_replaced_loses_nothing",
    ),
    Fault(
        "metrics are written with fifteen digits",
        "simulation/store.py",
        "writer.writerows(rows)",
        'writer.writerows({key: f"{value:.15g}" for key, value in row.items()} for row in rows)',
        "simulation/test_store.py::test_metrics_come_back_bit_by_bit",
    ),
    Fault(
        "a run is found under the id of another config",
        "simulation/store.py",
        'if content_id(identity_of(found["config"])) != self.id:',
        "if False:",
        "simulation/test_store.py",
    ),
    # verdicts
    Fault(
        "a pooled variance is divided by n",
        "reproduction/verdict.py",
        "np.var(one.differences, ddof=1)",
        "np.var(one.differences)",
        "reproduction/test_verdict.py",
    ),
    Fault(
        "a claim holds where one of its comparisons does",
        "reproduction/verdict.py",
        "if all(one.finding == HOLDS for one in found):",
        "if any(one.finding == HOLDS for one in found):",
        "reproduction/test_verdict.py::test_every_comparison_has_to_hold",
    ),
    Fault(
        "a tie is counted as a win",
        "reproduction/verdict.py",
        "inside = low > one.margin if",
        "inside = low >= one.margin if",
        "reproduction/test_verdict.py::test_a_tie_is_no_win",
    ),
    Fault(
        "the best cell is the highest where lower is better",
        "reproduction/reduce.py",
        'lower = measure.better == "lower"',
        "lower = False",
        "reproduction/test_reproduce.py::test_rows_are_what_the_runs_say",
    ),
    Fault(
        "a label that is true is matched by 1",
        "reproduction/rows.py",
        "value == one and isinstance(value, bool) == isinstance(one, bool)",
        "value == one",
        "reproduction/test_reproduce.py::test_a_label_that_is_true_is_not_one",
    ),
    Fault(
        "two seeds decide a claim",
        "reproduction/verdict.py",
        "if n < FEWEST:",
        "if n < FEWEST - 1:",
        "reproduction/test_verdict.py::test_fewer_than_three_seeds_decide_nothing",
    ),
    Fault(
        "the largest value of a grid is no edge",
        "reproduction/reduce.py",
        "max(values): high",
        'max(values): ""',
        "reproduction/test_search.py",
    ),
    *privacy_faults.MENDS,
    *plugin_faults.MENDS,
]


def tried(fault: Fault) -> str:
    """What the tests say of a fault. For a process of its own."""
    with tempfile.TemporaryDirectory(prefix="fault") as name:
        copy = Path(name)
        for part in COPIED:
            make = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            make(ROOT / part, copy / part)
        if fault.old:
            place = copy / "dpfl_cli" / fault.file
            text = place.read_text()
            if text.count(fault.old) != 1:
                return f"STALE: {fault.file} has the text {text.count(fault.old)} times"
            place.write_text(text.replace(fault.old, fault.new))
        os.chdir(copy)
        # a process of a pool may start none itself, as tests do (`tests.apart`)
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        os.environ["PYTHONPATH"] = sys.path[0] = name
        for one in [one for one in sys.modules if one.partition(".")[0] == "tests"]:
            del sys.modules[one]
        with (copy / "said").open("w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        files = [f"tests/{one}" for one in fault.tests.split()]
        code = pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *files])
        sys.stdout.flush()
        text = (copy / "said").read_text()
        os.chdir(ROOT)
    failed = re.search(r"^FAILED tests/(.+?)(?: - .*)?$", text, re.MULTILINE)
    if code == pytest.ExitCode.TESTS_FAILED and failed:
        return f"caught by {failed[1]}"
    return "MISSED" if code == pytest.ExitCode.OK else f"NOT RUN\n{text[-4000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="faults whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    asked = parser.parse_args()
    chosen = [one for one in FAULTS if any(part in one.name for part in asked.only or [""])]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    bad = 0
    with multiprocessing.get_context("fork").Pool(asked.jobs, maxtasksperchild=1) as pool:
        if asked.only is None:
            files = " ".join(dict.fromkeys(part for one in FAULTS for part in one.tests.split()))
            said = pool.apply(tried, [Fault("", "", "", "", files)])
            print(f"no fault: {'nothing' if said == 'MISSED' else said}")
            bad += said != "MISSED"
        for fault, said in zip(chosen, pool.imap(tried, chosen), strict=True):
            bad += not said.startswith("caught")
            print(f"{fault.name}: {said}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
