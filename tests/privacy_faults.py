"""What closes the ways in which a printed epsilon was false, undone one by one; see `tests.faults`.

    python -m tests.faults --only privacy

The numbers are those of the classes of holes: values per record, marks, makers of bounds, batches,
noise, joint prices, counts, the end of a run, seeds, what errors and guarantees say; "drawn" are
clients who are drawn for a round. What plausible plugins leaked is in `tests.plugin_faults`.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """`old` in `file` (of dpfl_cli) becomes `new`; `tests` (files of tests) should notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


PLUGINS = "privacy/test_plugins.py"
MARKS = "privacy/test_client_values.py"
ENDS = "privacy/test_end_of_a_run.py"
COHORTS = "simulation/test_participation.py"
CHECKS = "simulation/test_conformance.py"
DOOR = "privacy/test_door.py"
PRICES = "cli/test_python.py"
BATCHES = "privacy/test_poisson_batches.py"
DATA_PLUGINS = "privacy/test_data_plugins.py"
MENDS = [
    Fault(
        "privacy 1: a bound per record is proved at any point",
        "models/client_side.py",
        "elif any(is_raw(point) for point in points):",
        "elif False:",
        f"{PLUGINS}::test_a_clipped_gradient_at_a_raw_point_is_no_bound",
    ),
    Fault(
        "privacy 1: what clients keep of a share of the sum counts as their own",
        "privacy/gaussian.py",
        "echo = own_values(messages) if priced else client_values(messages)",
        "echo = own_values(messages)",
        f"{PLUGINS}::test_what_a_client_keeps_of_a_message_is_its_own_where_messages_are_priced",
    ),
    Fault(
        "privacy 2: modes, hooks and transforms may look on",
        "privacy/client_values.py",
        "    if (\n        torch._C._len_torch_function_stack()",
        "    if False and (\n        torch._C._len_torch_function_stack()",
        f"{MARKS}::test_what_would_lose_the_mark_is_refused",
    ),
    Fault(
        "privacy 2: transforms of torch.func lose the mark",
        "privacy/client_values.py",
        "        or torch._C._functorch.peek_interpreter_stack() is not None\n",
        "",
        f"{MARKS}::test_what_would_lose_the_mark_is_refused",
    ),
    Fault(
        "privacy 2: hooks on saved tensors see plain numbers",
        "privacy/client_values.py",
        "        or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None\n",
        "",
        f"{MARKS}::test_what_would_lose_the_mark_is_refused",
    ),
    Fault(
        "privacy 2: objectives compute under a mode",
        "models/client_side.py",
        "        refuse_watchers()\n        if tuple(values.shape) != self.__sizes:",
        "        if tuple(values.shape) != self.__sizes:",
        f"{PLUGINS}::test_objectives_and_mechanisms_are_not_watched",
    ),
    Fault(
        "privacy 2: a wider tensor moves clients to another axis",
        "privacy/separation.py",
        "        elementwise(given)  # a wider",
        "        elementwise(Given(given.args[:1], {}, given.marks))  # a wider",
        "privacy/test_door.py::test_clients_do_not_meet_in_a_shape_that_fits",
    ),
    Fault(
        "privacy 3: whoever makes a bound has proved it",
        "privacy/bounded.py",
        "        proved=False,\n        source=object()",
        "        proved=True,\n        source=object()",
        f"{PLUGINS}::test_a_bound_that_somebody_states_is_a_claim",
    ),
    Fault(
        "privacy 3: a plugin's model vouches for its bounds",
        "models/client_side.py",
        "        if self.__plugin:\n            why",
        "        if False:\n            why",
        f"{PLUGINS}::test_a_plugins_model_makes_no_bound_per_record",
    ),
    Fault(
        "privacy 3: a bound that is claimed is released under dp.mode=sound",
        "privacy/mechanism.py",
        "            if site.sound:\n",
        "            if False:\n",
        "privacy/test_second_order_privacy.py::test_a_bound_that_is_only_claimed_needs_paper_mode",
    ),
    Fault(
        "privacy 4: rate and disjoint are believed",
        "privacy/releases.py",
        "if spec.rate is None and spec.disjoint == 1:",
        "if True:",
        f"{PLUGINS}::test_the_same_records_in_every_round_are_not_priced_as_subsampled",
    ),
    Fault(
        "privacy 4: a batch may be released twice",
        "privacy/releases.py",
        "if not fresh.all():",
        "if False:",
        f"{PLUGINS}::test_the_same_records_in_every_round_are_not_priced_as_subsampled",
    ),
    Fault(
        "privacy 4: a batch may be larger than its price says",
        "privacy/releases.py",
        "if batch.size > most * (1 + 1e-9):",
        "if False:",
        f"{PLUGINS}::test_the_same_records_in_every_round_are_not_priced_as_subsampled",
    ),
    Fault(
        "privacy 5: a method draws the mechanism's noise by its name",
        "privacy/draws.py",
        'if name.split("/", maxsplit=1)[0] == "noise" or key in self.__noise:',
        "if key in self.__noise:",
        f"{PLUGINS}::test_nobody_draws_the_mechanisms_noise",
    ),
    Fault(
        "privacy 5: a method draws the mechanism's noise by a name that collides",
        "privacy/draws.py",
        'if name.split("/", maxsplit=1)[0] == "noise" or key in self.__noise:',
        'if name.split("/", maxsplit=1)[0] == "noise":',
        f"{PLUGINS}::test_nor_by_a_name_that_collides_with_it",
    ),
    Fault(
        "privacy 6: joint prices are of any two releases",
        "privacy/releases.py",
        "if (mine & (when == rounds) & (sources != values.source)).any():",
        "if False:",
        f"{PLUGINS}::test_releases_of_a_group_are_of_the_same_contributions",
    ),
    Fault(
        "privacy 6: of a group's releases in a round only the last is compared",
        "privacy/releases.py",
        "self._groups.setdefault((spec.group, which), nothing)",
        "self._groups.setdefault((spec.group, 0), nothing)",
        f"{PLUGINS}::test_several_releases_of_a_group_in_a_round_are_told_apart",
    ),
    Fault(
        "privacy 6: of a group's releases those of other runs are compared",
        "privacy/releases.py",
        "np.where(charged, number, -1)",
        "number",
        f"{PLUGINS}::test_releases_of_a_group_are_compared_run_by_run",
    ),
    Fault(
        "privacy 6: releases of a group are made in rounds of their own",
        "simulation/checks.py",
        "if (times[0] != times[1]).any():",
        "if False:",
        f"{PLUGINS}::test_releases_of_a_group_are_made_together",
    ),
    Fault(
        "privacy 7: numbers of records are public where clients are protected",
        "models/client_side.py",
        "return counts if self.__counts_public else self.__theirs(counts)",
        "return counts",
        f"{PLUGINS}::test_counts_are_private_where_clients_are",
    ),
    Fault(
        "privacy 7: the smallest number of records is used, unlisted",
        "simulation/run_plan.py",
        "elif uses:  # a client's own number is private where the whole client is",
        "elif False:",
        "privacy/test_nominal.py::test_numbers_of_records_are_not_covered_where_they_are_used",
    ),
    Fault(
        "privacy 7: numbers of classes and features are not listed",
        "simulation/run_plan.py",
        '            "numbers of clients, features and classes",\n',
        "",
        "privacy/test_data_plugins.py::test_what_is_computed_over_records_is_listed",
    ),
    Fault(
        "privacy 8: a metric that is not finite ends a run",
        "simulation/stack.py",
        "            if not is_finite:\n",
        "            if not (is_finite and np.isfinite(found).all()):\n",
        f"{ENDS}::test_a_metric_that_is_not_finite_ends_no_run",
    ),
    Fault(
        "privacy 8: a run that ended early is priced by what it released",
        "simulation/results.py",
        "return member.ledger if member.diverged is None else member.plan.ledger()",
        "return member.ledger",
        f"{ENDS}::test_a_run_that_ends_by_what_it_released_is_priced_as_it_was_planned",
    ),
    Fault(
        "privacy 8: a curvature that is not finite ends a run",
        "models/curvature.py",
        "usable = torch.isfinite(matrix).all(dim=(-2, -1))",
        "usable = torch.ones(matrix.shape[:-2], dtype=torch.bool)",
        "models/test_second_order.py::test_a_curvature_that_is_not_finite_ends_no_run",
    ),
    Fault(
        "privacy 9: secret noise is of the seed",
        "simulation/stack.py",
        'if seeds is None and self.plan.dp.noise == "secret":',
        "if False:",
        f"{ENDS}::test_secret_noise_is_of_no_seed_and_moves_no_other_id",
    ),
    Fault(
        "privacy 9: nobody says that noise is a function of the seed",
        "simulation/run_plan.py",
        'yield SEEDED if self.dp.noise == "seeded" else SECRET',
        "pass",
        f"{ENDS}::test_secret_noise_is_of_no_seed_and_moves_no_other_id",
    ),
    Fault(
        "privacy 9: nobody says that floating-point noise is not covered",
        "simulation/run_plan.py",
        'yield "rounding of floating-point noise (Mironov 2012)"',
        "pass",
        f"{ENDS}::test_secret_noise_is_of_no_seed_and_moves_no_other_id",
    ),
    Fault(
        "privacy 10: a delta of 1/n is not warned of in the guarantee",
        "simulation/store.py",
        "if delta * units < 1:",
        "if True:",
        f"{ENDS}::test_a_delta_that_means_nothing_is_said_beside_the_guarantee",
    ),
    Fault(
        "privacy 10: a delta of 1/n is not warned of in tables",
        "cli/tables.py",
        'LARGE_DELTA in privacy["guarantee"]',
        "False",
        f"{ENDS}::test_a_delta_that_means_nothing_is_said_beside_every_epsilon",
    ),
    Fault(
        "privacy 10: exceptions carry values",
        "privacy/client_values.py",
        'raise PrivacyError(f"{cls.what} in {name}: {failed}; check shapes and types") from None',
        'raise PrivacyError(f"{cls.what} in {name}: {error}") from None',
        f"{MARKS}::test_errors_do_not_carry_values",
    ),
    Fault(
        "privacy 10: a guarantee names one gap of several",
        "simulation/checks.py",
        'return "; ".join(reason for reason in found if reason) or None',
        "return next((reason for reason in found if reason), None)",
        f"{ENDS}::test_a_guarantee_names_all_its_gaps",
    ),
    Fault(
        "privacy drawn: a mean is divided by the number that happened to be drawn",
        "privacy/mechanism.py",
        "return among(cohort, own).sum(dim=1) / cohort.sampling.size",
        "return among(cohort, own).sum(dim=1) / among(cohort, torch.ones_like(own)).sum(dim=1)",
        f"{COHORTS}::test_one_client_moves_a_release_by_its_bound_over_the_expected_size",
    ),
    Fault(
        "privacy drawn: an empty cohort is not charged",
        "privacy/mechanism.py",
        "        log.charge(rounds, charged, largest,",
        "        if values.cohort is not None:\n"
        "            there = among(values.cohort, torch.ones(values.shape[:2]))\n"
        "            charged = charged & there.any(dim=1).numpy()\n"
        "        log.charge(rounds, charged, largest,",
        f"{COHORTS}::test_an_empty_cohort_is_noise_that_is_charged",
    ),
    Fault(
        "privacy drawn: values of another round's clients are released",
        "privacy/releases.py",
        "            or cohort.sampling != sampling\n"
        "            or not np.array_equal(cohort.rounds, rounds)\n",
        "",
        f"{COHORTS}::test_values_of_another_rounds_clients_are_not_released",
    ),
    Fault(
        "privacy drawn: what `init` computed of all clients meets a cohort",
        "privacy/client_values.py",
        "    if theirs is not cohort and (theirs is not None or is_raw(values)):",
        "    if theirs is not cohort and theirs is not None:",
        f"{COHORTS}::test_what_init_computes_of_all_clients_meets_no_cohort",
    ),
    Fault(
        "privacy drawn: the number of those who take part shows in shapes",
        "privacy/draws.py",
        "    return Cohort(sampling, rounds.copy(), members, maker=_MAKER)",
        "    most = max(1, int((members != NOBODY).sum(axis=1).max()))\n"
        "    return Cohort(sampling, rounds.copy(), members[:, :most], maker=_MAKER)",
        f"{COHORTS}::test_nothing_that_a_method_sees_tells_how_many_take_part",
    ),
    Fault(
        "privacy drawn: a subset of clients is priced at half the sensitivity",
        "privacy/subsampling.py",
        "    if rate == 1:\n        return own\n",
        "    if rate == 1:\n        return own\n    noise_multiplier *= 2\n",
        "privacy/test_amplification.py::test_a_fixed_cohort_has_the_sensitivity_of_replacing",
    ),
    Fault(
        "privacy drawn: releases of one cohort are amplified apart",
        "privacy/accountants.py",
        "            total[number] = total.get(number, 0.0) + squared\n",
        "            total[len(total)] = squared\n",
        "privacy/test_amplification.py",
    ),
    Fault(
        "privacy drawn: cohorts are drawn under a trust model that sees them",
        "simulation/checks.py",
        'if dp.trust in ("local", "secure_aggregation"):',
        "if False:",
        f"{COHORTS}::test_what_makes_no_sense_is_refused",
    ),
    Fault(
        "privacy drawn: fixed cohorts of clients that keep a state are proved",
        "simulation/checks.py",
        'if plan.participation.name == "fixed" and target.away == "rests":',
        "if False:",
        f"{COHORTS}::test_what_makes_no_sense_is_refused",
    ),
    Fault(
        "privacy drawn: nobody asks whether the clients of a cohort meet",
        "simulation/conformance.py",
        "if not _same(among(one.cohort, one.values), True, one.cohort):",
        "if one.cohort is None and not _same(one.values, True):",
        f"{CHECKS}::test_clients_of_a_cohort_do_not_meet_unnoticed",
    ),
    Fault(
        "privacy drawn: a check changes the data of a client who never takes part",
        "cli/check.py",
        "if not (members_of(cohorts) == CLIENT).any():",
        "if False:",
        f"{CHECKS}::test_a_client_who_never_takes_part_shows_nothing",
    ),
    Fault(
        "privacy checks: a model counts as tried with methods that nobody tried it with",
        "simulation/checked.py",
        "if need in provided and",
        "if need is None and",
        f"{DATA_PLUGINS}::test_a_model_is_tried_with_what_methods_need_of_it",
    ),
    Fault(
        "privacy checks: neighbours keep the records of the client that changed",
        "simulation/neighbours.py",
        "whole[its] = 0",
        "pass",
        f"{DATA_PLUGINS}::test_a_clients_records_are_gone_where_it_holds_others",
    ),
    Fault(
        "privacy 7: a plugin's network begins with what it took from the data",
        "models/network.py",
        "blank_anew = True",
        "blank_anew = False",
        f"{DATA_PLUGINS}::test_what_a_network_took_from_the_data_is_not_in_its_beginning",
    ),
    Fault(
        "privacy drawn: a check of all clients counts for cohorts",
        "simulation/checked.py",
        "[*way, plan.dp.trust, *drawn]",
        "[*way, plan.dp.trust]",
        f"{CHECKS}::test_a_guarantee_says_whether_its_method_was_checked",
    ),
    Fault(
        "privacy batches: what goes on from a checkpoint has released no batch yet",
        "simulation/member.py",
        "            **{name: getattr(self, name) for name in PLAIN},\n",
        "            **{name: getattr(self, name) for name in PLAIN} | {'batches': {}},\n",
        BATCHES,
    ),
    Fault(
        "privacy batches: what goes on in another stack has released no batch yet",
        "simulation/stack.py",
        "            member.batches = self.ledger.batches_of(run)\n",
        "",
        BATCHES,
    ),
    Fault(
        "privacy batches: where a record is gone nothing fills its place",
        "privacy/bounded.py",
        'refilled = relation == "add_or_remove" and law not in (None, "poisson")',
        "refilled = False",
        BATCHES,
    ),
    Fault(
        "privacy data: one client's records decide who of the others is held out",
        "data/loading.py",
        'stream_generator(0, "data", crc32(str(name).encode()))',
        'stream_generator(0, "data", size)',
        "data/test_arrays.py::test_how_many_records_a_client_has_moves_no_other_clients_test_records",
    ),
    Fault(
        "privacy trust: who is not there sends noise all the same",
        "simulation/checks.py",
        'dp.relation == "add_or_remove" and dp.trust in _SENDS',
        "False",
        "config/test_compose.py",
    ),
    Fault(
        "privacy bounds: squares that are lost hide a length",
        "privacy/bounded.py",
        "    return torch.where(norms < 1e3 * lost, norms + lost, norms)\n",
        "    return norms\n",
        "privacy/test_bounded.py::test_squares_that_are_lost_hide_no_length",
    ),
    Fault(
        "privacy checks: runs may mix",
        "simulation/conformance.py",
        "            self._note(company([runs[0], runs[-1]], [self.federation, neighbours[0]]))\n",
        "",
        f"{CHECKS}::test_a_faulty_method_is_told_by_the_right_check",
    ),
    Fault(
        "privacy checks: runs may mix in later rounds",
        "cli/check.py",
        "LONGER = 60 ",
        "LONGER = 3 ",
        f"{CHECKS}::test_a_faulty_method_is_told_by_the_right_check",
    ),
    Fault(
        "privacy checks: what failed is called proved",
        "simulation/results.py",
        "(proof_gap(plan), failed_check(plan), *claims)",
        "(proof_gap(plan), *claims)",
        CHECKS,
    ),
    Fault(
        "privacy bounds: long records without curvature take others' digits",
        "models/curvature.py",
        "ROUNDING = {torch.float64: 2e-8,",
        "ROUNDING = {torch.float64: 1e3 * torch.finfo(torch.float64).eps,",
        "privacy/test_second_order_privacy.py",
    ),
    Fault(
        "privacy bounds: sums in float32 are proved over any number of records",
        "privacy/record_bounds.py",
        "MOST_ADDED, MOST_MULTIPLIED = 1 << 16, 1 << 12",
        "MOST_ADDED, MOST_MULTIPLIED = 1 << 40, 1 << 40",
        "privacy/test_second_order_privacy.py",
    ),
    Fault(
        "privacy bounds: paper mode calls proved what its releases were not",
        "simulation/results.py",
        "(proof_gap(plan), failed_check(plan), *claims)",
        "(proof_gap(plan), failed_check(plan))",
        "cli/test_run.py",
    ),
    Fault(
        "privacy bounds: a clip norm may be so small that nothing is clipped to it",
        "privacy/bounded.py",
        "torch.float64: 1e-10}",
        "torch.float64: 1e-154}",
        "cli/test_run.py",
    ),
    Fault(
        "privacy bounds: a solution's rounding may exceed its sensitivity",
        "privacy/record_bounds.py",
        "SMALLEST = {torch.float64: 1e-6, torch.float32: 1e-4}",
        "SMALLEST = {torch.float64: 0.0, torch.float32: 0.0}",
        "privacy/test_second_order_privacy.py",
    ),
    Fault(
        "privacy reports: the mean alone of a plugin's messages",
        "simulation/results.py",
        "own = plan.algorithm.plugin or plan.mechanism.plugin\n",
        "own = plan.mechanism.plugin\n",
        "privacy/test_nominal.py::test_central_runs_agree_with_the_mean_alone",
    ),
    Fault(
        "privacy modules: nobody looks again at what they give",
        "models/own_module.py",
        "if not same or _memory(module)[1] != before[1]:",
        "if _memory(module)[1] != before[1]:",
        "models/test_own_module.py",
    ),
    Fault(
        "privacy modules: nobody looks again at what they hold",
        "models/own_module.py",
        "if not same or _memory(module)[1] != before[1]:",
        "if not same:",
        "models/test_own_module.py",
    ),
    Fault(
        "privacy data: a record is dealt twice",
        "simulation/run_plan.py",
        "    if (dealt[1:] == dealt[:-1]).any():\n",
        "    if False:\n",
        "privacy/test_data_plugins.py::test_a_deal_is_of_records_that_there_are_once",
    ),
    Fault(
        "privacy statements: means are all that is seen, whatever is made of messages",
        "simulation/results.py",
        'trust == "local" and means and (',
        'trust == "local" and (',
        "privacy/test_nominal.py",
    ),
    Fault(
        "privacy statements: metrics on held-out records are of public ones",
        "models/objective.py",
        "(set() if owned else self.test_metrics)",
        "self.test_metrics",
        "data/test_arrays.py models/test_client_mean.py",
    ),
    Fault(
        "privacy solves: float32 keeps its residual at any damping",
        "privacy/record_bounds.py",
        "matrix / (10 if residual else 1e5)",
        "matrix / 1e9",
        "privacy/test_second_order_privacy.py",
    ),
    Fault(
        "privacy checks: a type's rounding hides a longer way",
        "simulation/conformance.py",
        "moved -= torch.finfo(one.values.dtype).eps * ",
        "moved -= 0.1 * ",
        f"{CHECKS}::test_rounding_is_no_distance",
    ),
    Fault(
        "privacy models: a module may keep something of the records that it saw",
        "models/own_module.py",
        "    if not all(torch.equal(one.nan_to_num(), first.nan_to_num()) for one in later):\n",
        "    if False:\n",
        "models/test_own_module.py",
    ),
    Fault(
        "privacy checks: noise need not be Gaussian",
        "simulation/noise_tests.py",
        'kstest(draws.flatten().numpy(), "norm").pvalue < UNLIKELY',
        "False",
        f"{CHECKS}::test_noise_that_only_looks_as_priced_is_found",
    ),
    Fault(
        "privacy checks: coordinates may share their noise",
        "simulation/noise_tests.py",
        "for axis in (0, 2, 3) if",
        "for axis in (0, 2) if",
        f"{CHECKS}::test_noise_that_only_looks_as_priced_is_found",
    ),
    Fault(
        "privacy together: a round of two runs is of one cohort",
        "privacy/ledger.py",
        "tuple(before + number for number in entry.rounds)",
        "tuple(number for number in entry.rounds)",
        f"{PRICES}::test_runs_on_the_same_data_have_a_price_together",
    ),
    Fault(
        "privacy together: runs of one seed have noise of their own",
        "cli/pricing.py",
        'if record.config["dp"].get("noise") == "secret":',
        "if True:",
        f"{PRICES}::test_runs_whose_epsilons_do_not_add_up_have_none",
    ),
    Fault(
        "privacy together: runs of other records add up",
        "cli/pricing.py",
        "if of(record) != of(first):",
        "if False:",
        f"{PRICES}::test_runs_whose_epsilons_do_not_add_up_have_none",
    ),
    Fault(
        "privacy checks: a model counts as tried on batches that nobody drew",
        "simulation/checked.py",
        "return [canonical_json([*way, _coarse(method), *drawn])]",
        "return [canonical_json([*way, method.name, *drawn])]",
        f"{DATA_PLUGINS}::test_a_model_is_tried_with_what_methods_need_of_it",
    ),
    Fault(
        "privacy noise: a release may change its length, and repeat noise",
        "privacy/ledger.py",
        "if self.form != form:",
        "if False:",
        f"{DOOR}::test_a_release_keeps_its_form",
    ),
    Fault(
        "privacy noise: a release may change its length after an interrupt",
        "privacy/ledger.py",
        'self.form = min(before - {""}, default=form)',
        "self.form = form",
        f"{DOOR}::test_a_release_keeps_its_form",
    ),
    Fault(
        "privacy checks: runs of one mechanism have one noise",
        "cli/check.py",
        'noise * (1 + run["seed"] % 3)',
        "noise",
        f"{CHECKS}::test_a_faulty_mechanism_is_told",
    ),
]
