"""What closes the ways in which plausible plugins got a false guarantee, undone one by one; see
`tests.faults`.
"""

from __future__ import annotations

from tests.privacy_faults import PLUGINS, Fault

MENDS = [
    Fault(
        "privacy plugin: gradients go through a release",
        "privacy/mechanism.py",
        "    @torch.no_grad()  # a gradient through a release would have no noise\n",
        "",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: inference mode hides changes in place",
        "privacy/client_values.py",
        "        or torch.is_inference_mode_enabled()  # in-place changes would not be seen\n",
        "",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: how many results there are tells of values",
        "privacy/client_values.py",
        "            if isinstance(part, Tensor) and part.shape[:2] != own[0]:\n"
        "                # how many entries there would be may tell of their values\n"
        '                raise Mixing(f"{list(own[0])} would not be its first two axes any more")',
        "            if isinstance(part, Tensor) and part.shape[:2] != own[0]:\n"
        '                raise Mixing(f"the result is {list(part.shape)}")',
        PLUGINS,
    ),
    Fault(
        "privacy plugin: errors of a model say values",
        "models/guarded.py",
        'raise PrivacyError(f"{name} of the model failed: {without_values(error)}") from error',
        'raise PrivacyError(f"{name} of the model failed: {error}") from error',
        PLUGINS,
    ),
    Fault(
        "privacy plugin: stored reasons say values",
        "simulation/results.py",
        "if private and not (isinstance(error, DpflError) and raised_by_dpfl(error)):",
        "if False:",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: sensitivities tell numbers of records",
        "privacy/bounded.py",
        "    if not counts_public:\n",
        "    if False:\n",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: the number of batches tells numbers of records",
        "models/client_side.py",
        "        if not self.__counts_public:\n            raise PrivacyError(",
        "        if False:\n            raise PrivacyError(",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: a method draws the records of its batches again",
        "privacy/method_streams.py",
        "        if key in others:\n",
        "        if False:\n",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: what a method inherits is its proof",
        "simulation/checks.py",
        'if "gaps" in vars(target) or (hasattr(target, "gaps") and not plugin):',
        'if hasattr(target, "gaps"):',
        PLUGINS,
    ),
    Fault(
        "privacy plugin: a plugin's mechanism is proved",
        "simulation/checks.py",
        'if chosen[group].component.origin != "dpfl"',
        "if False",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: clients know their shares of the noise",
        "simulation/checks.py",
        'if plugin and kept and trust == "secure_aggregation":',
        "if False:",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: a refusal may be caught",
        "simulation/stack.py",
        "        if DpflError.raised != raised:\n",
        "        if False:\n",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: a model begins at what it made of the data",
        "models/client_side.py",
        '        self._public("the initial model", found, (self.runs, self.dimension))\n',
        "",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: a regulariser hands out what it made of the data",
        "models/client_side.py",
        "if isinstance(found, Unreleased) != isinstance(given, Unreleased):",
        "if False:",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: what a model computes for everybody is of the data",
        "models/client_side.py",
        "        if not self.__plugin:\n            return self.__objective\n",
        "        if True:\n            return self.__objective\n",
        "privacy/test_data_plugins.py",
    ),
    Fault(
        "privacy plugin: a model says by what batches are divided",
        "models/client_side.py",
        "        if records is not None:\n            size = (self.runs, self.clients)\n",
        "        if records is not None:\n            return self.__objective.divisors(records)\n",
        "privacy/test_data_plugins.py",
    ),
    Fault(
        "privacy plugin: a method reads the data from their file",
        "simulation/stack.py",
        "        with closed(self.members[0].plan.data_files):\n",
        "        with closed([]):\n",
        PLUGINS,
    ),
    Fault(
        "privacy plugin: a batch shows its records where it is printed",
        "privacy/batches.py",
        "    __records: Tensor = field(repr=False)\n",
        "    __records: Tensor = field()\n",
        PLUGINS,
    ),
]
