"""Each step of a job applies the settings of its run.

Any step may be the first one that a worker runs.
"""

import ast
from pathlib import Path

import recordmill.transforms

HANDLES = {"SharedPlanHandle", "SharedReadRun", "PlanHandle"}
BEGINNINGS = {"begin_step", "work"}
# These functions run in the process that starts the job, or call a step that begins.
NOT_STEPS = {"build_in_one_step", "collect_split"}


def _steps(tree: ast.AST) -> list[ast.FunctionDef]:
    """Returns the functions with a parameter for the handle of a run."""
    return [
        function
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(
            ast.unparse(parameter.annotation).rpartition(".")[2] in HANDLES
            for parameter in function.args.args
            if parameter.annotation is not None
        )
    ]


def test_each_step_applies_the_settings_of_its_run() -> None:
    steps = {
        function.name: function
        for path in _transforms()
        for function in _steps(ast.parse(path.read_text()))
        if function.name not in NOT_STEPS
    }
    assert {"process", "commit_build", "read_task_pack", "analyze_unit_group"} <= steps.keys()
    for name, function in steps.items():
        called = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
        assert BEGINNINGS & called, name


def _transforms() -> list[Path]:
    return [
        path for folder in recordmill.transforms.__path__ for path in Path(folder).rglob("*.py")
    ]
