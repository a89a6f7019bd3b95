"""What closes the ways in which plausible plugins got a false guarantee, undone one by one; see
`tests.faults`.
"""

from __future__ import annotations

from tests.privacy_faults import COHORTS, DATA_PLUGINS, PLUGINS, Fault

MENDS = [
    Fault(
        "privacy plugin: gradients go through a release",
        "privacy/mechanism.py",
        "    @torch.no_grad()  # a gradient through a release would have no noise\n",
        "",
        f"{PLUGINS}::test_no_gradient_goes_through_a_release",
    ),
    Fault(
        "privacy plugin: inference mode hides changes in place",
        "privacy/client_values.py",
        "        or torch.is_inference_mode_enabled()  # in-place changes would not be seen\n",
        "",
        f"{PLUGINS}::test_changes_in_place_are_not_hidden_by_inference_mode",
    ),
    Fault(
        "privacy plugin: how many results there are tells of values",
        "privacy/client_values.py",
        "            if isinstance(part, Tensor) and part.shape[:2] != own[0]:\n"
        "                # how many entries there would be may tell of their values\n"
        '                raise Mixing(f"{list(own[0])} would not be its first two axes any more")',
        "            if isinstance(part, Tensor) and part.shape[:2] != own[0]:\n"
        '                raise Mixing(f"the result is {list(part.shape)}")',
        f"{PLUGINS}::test_how_many_values_are_positive_is_no_part_of_a_message",
    ),
    Fault(
        "privacy plugin: errors of a model say values",
        "models/guarded.py",
        "said = without_values(error)",
        "said = error",
        f"{PLUGINS}::test_a_models_error_carries_no_values_and_is_a_refusal",
    ),
    Fault(
        "privacy plugin: stored reasons say values",
        "simulation/results.py",
        "if private and not (isinstance(error, DpflError | UnknownOption)",
        "if False and (True",
        f"{PLUGINS}::test_a_models_error_carries_no_values_and_is_a_refusal",
    ),
    Fault(
        "privacy plugin: sensitivities tell numbers of records",
        "privacy/bounded.py",
        "    if not counts_public:\n",
        "    if False:\n",
        f"{PLUGINS}::test_bounds_and_epochs_tell_no_numbers_of_records_where_clients_are_protected",
    ),
    Fault(
        "privacy plugin: the number of batches tells numbers of records",
        "models/client_side.py",
        "        if not self.__counts_public:\n            raise PrivacyError(",
        "        if False:\n            raise PrivacyError(",
        f"{PLUGINS}::test_bounds_and_epochs_tell_no_numbers_of_records_where_clients_are_protected",
    ),
    Fault(
        "privacy plugin: the width of squared norms tells numbers of records",
        "models/client_side.py",
        'self._refuse_counted("squared_norms_mean of all records: its width")',
        "pass",
        f"{COHORTS}::test_nothing_that_a_method_sees_tells_how_many_take_part",
    ),
    Fault(
        "privacy plugin: a number that a method keeps is lost by a kill",
        "simulation/confined.py",
        "        if name not in given or given[name] != value:\n",
        "        if name not in given and isinstance(value, list):\n",
        f"{PLUGINS}::test_numbers_that_a_run_would_lose_are_refused",
    ),
    Fault(
        "privacy plugin: what a file keeps is compared with the run before",
        "simulation/confined.py",
        "            _spoilt.update(dict.fromkeys(self._modules, changed[0]))\n",
        "            raise PrivacyError(f'{changed[0]} changed while runs were made')\n",
        f"{PLUGINS}::test_numbers_that_a_run_would_lose_are_refused",
    ),
    Fault(
        "privacy plugin: what a file imports is no part of its revision",
        "config/own_files.py",
        "for some in beside.values() for file in some",
        "for some in () for file in some",
        f"{PLUGINS}::test_what_a_plugin_imports_is_part_of_its_revision_and_looked_at",
    ),
    Fault(
        "privacy plugin: what releases there are is declared by the data",
        "simulation/plan.py",
        "    with closed(plan.data_files):\n",
        "    with closed([]):\n",
        f"{PLUGINS}::test_what_releases_are_is_declared_without_the_data",
    ),
    Fault(
        "privacy plugin: a number that switches code on counts as checked",
        "simulation/checked.py",
        'return f"a number {(value > 0) - (value < 0):+d}" if',
        'return "a number" if',
        f"{DATA_PLUGINS}::test_a_model_is_tried_with_what_methods_need_of_it",
    ),
    Fault(
        "privacy plugin: a method draws the records of its batches again",
        "privacy/draws.py",
        "        if batches != of_batches:\n",
        "        if False:\n",
        f"{PLUGINS}::test_nobody_else_draws_from_the_streams_of_batches",
    ),
    Fault(
        "privacy plugin: batches of two names are the same records",
        "privacy/draws.py",
        "        if known != name:\n",
        "        if False:\n",
        f"{PLUGINS}::test_batches_of_names_that_collide_are_no_fresh_ones",
    ),
    Fault(
        "privacy plugin: what a method inherits is its proof",
        "simulation/checks.py",
        'if "gaps" in said:',
        'if hasattr(target, "gaps"):',
        f"{PLUGINS}::test_what_nobody_proved_is_refused",
    ),
    Fault(
        "privacy plugin: a plugin's mechanism is proved",
        "simulation/checks.py",
        "if one.plugin",
        "if False",
        f"{PLUGINS}::test_what_nobody_proved_is_refused",
    ),
    Fault(
        "privacy plugin: clients know their shares of the noise",
        "simulation/checks.py",
        'if algorithm.plugin and kept and trust == "secure_aggregation":',
        "if False:",
        f"{PLUGINS}::test_what_nobody_proved_is_refused",
    ),
    Fault(
        "privacy plugin: a refusal may be caught",
        "simulation/stack.py",
        "        if DpflError.raised != raised:\n",
        "        if False:\n",
        f"{PLUGINS}::test_a_refusal_that_is_caught_ends_the_run",
    ),
    Fault(
        "privacy plugin: a model begins at what it made of the data",
        "models/client_side.py",
        '        self._public("the initial model", found, (self.runs, self.dimension))\n',
        "",
        f"{PLUGINS}::test_what_a_model_hands_over_is_public_or_stays_what_it_was",
    ),
    Fault(
        "privacy plugin: a regulariser hands out what it made of the data",
        "models/guarded.py",
        "if isinstance(found, Unreleased) != isinstance(given, Unreleased):",
        "if False:",
        f"{PLUGINS}::test_what_a_model_hands_over_is_public_or_stays_what_it_was",
    ),
    Fault(
        "privacy plugin: what a model computes for everybody is of the data",
        "models/client_side.py",
        "        if not self.__plugin:\n            return self.__objective\n",
        "        if True:\n            return self.__objective\n",
        "privacy/test_data_plugins.py::test_what_goes_to_everybody_is_not_of_the_data",
    ),
    Fault(
        "privacy plugin: a model says by what batches are divided",
        "models/client_side.py",
        "        if records is not None:\n            width =",
        "        if records is not None:\n            return self.__objective.divisors(records)\n"
        "            width =",
        "privacy/test_data_plugins.py::test_what_batches_are_divided_by_is_their_size",
    ),
    Fault(
        "privacy plugin: a method reads the data from their file",
        "simulation/stack.py",
        "closed(files)(compute)() if files else compute()",
        "compute()",
        f"{PLUGINS}::test_a_method_that_opens_the_data_itself_ends_the_run",
    ),
    Fault(
        "privacy plugin: a batch shows its records where it is printed",
        "privacy/draws.py",
        "    __records: Tensor = field(repr=False)\n",
        "    __records: Tensor = field()\n",
        f"{PLUGINS}::test_who_is_in_a_batch_or_a_cohort_is_in_no_attribute_to_be_read",
    ),
    Fault(
        "privacy plugin: local steps do not ask a model's own gradient",
        "models/single_layer.py",
        "if kernel is None or not known or not steps:",
        "if kernel is None or not steps:",
        "privacy/test_data_plugins.py::test_a_model_in_which_clients_meet_is_listed_and_found",
    ),
    Fault(
        "privacy plugin: a method keeps clients' values from run to run",
        "simulation/confined.py",
        "            refuse_kept(self._method, self._given)\n",
        "            pass\n",
        f"{PLUGINS}::test_what_would_stay_from_run_to_run_is_refused",
    ),
    Fault(
        "privacy plugin: what an earlier run left is not looked for before a run",
        "simulation/stack.py",
        "        self.refuse_kept()\n        fresh",
        "        fresh",
        f"{PLUGINS}::test_what_would_stay_from_run_to_run_is_refused",
    ),
    Fault(
        "privacy plugin: a method keeps clients' values in a default of its functions",
        "simulation/confined.py",
        "if not (own or isinstance(value, _HOLDERS)):",
        "if not isinstance(value, _HOLDERS):",
        f"{PLUGINS}::test_what_would_stay_from_run_to_run_is_refused",
    ),
    Fault(
        "privacy plugin: of a network's outputs only the first is compared",
        "models/own_module.py",
        "    if not torch.allclose(together, apart,",
        "    if not torch.allclose(together[:1], apart[:1],",
        "models/test_own_module.py::test_what_does_not_fit_is_refused_in_one_line",
    ),
]
