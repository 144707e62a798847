"""`python -m fedem_lightning ...`: Hydra composes data, model and algorithm.

Exit codes: 0 done; 2 what the user gave is wrong (one line says what); 1 anything else.
"""

import gc
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

import fedem_lightning
from fedem_lightning.run.command_line import (
    check_words,
    not_composed,
    remove_if_empty,
    remove_what_is_left,
    resume_command,
)
from fedem_lightning.run.commands import Unexpected, end, unexpected, usage, user_message, warning_line
from fedem_lightning.settings.errors import Interrupted, UserError
from fedem_lightning.settings.keys import CALLS_RUN, CONFIG_DIR
from fedem_lightning.settings.measures import headline
from fedem_lightning.settings.startup import is_worker_rank, loading

_typed: list[str] = []  # the words of the command line
_sweep_goes_on = ""  # how to continue the sweep to which the present job belongs
_full = False  # whether the user wants traces
_first_failure: Exception | None = None  # of the jobs of a sweep


def _folder_name(overrides: str) -> str:
    return overrides[:200].replace("/", "_")  # 255 bytes are allowed


OmegaConf.register_new_resolver("folder_name", _folder_name)


@hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="config")
def _hydra_main(config: DictConfig) -> float | None:
    hydra_config = HydraConfig.get()
    typed: Any = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)  # a list of words
    folder = Path(hydra_config.runtime.output_dir)
    if hydra_config.mode == RunMode.MULTIRUN:
        _describe_one_job(folder, typed)
    try:
        results = _loaded(config, typed)(
            config, folder, called_by(hydra_config.runtime.choices), typed, _config_flags(sys.argv[1:])
        )
    except Interrupted as stop:
        _stop(f"{stop}{_sweep_goes_on}")  # a sweep ends, too
    except Exception as error:
        wrong = "tune" in hydra_config.runtime.choices and "torch" not in sys.modules  # which all jobs would say
        if hydra_config.mode == RunMode.RUN or wrong or str(error).startswith("+tune:"):
            end(error, _full)
        _end_job(error, folder)
    finally:
        gc.collect()  # Lightning's cycles would keep a sweep's earlier federations in memory
        if not is_worker_rank():
            remove_if_empty(folder)
    val = results.get("val")
    return val[headline(val)[0]]["weighted"] if val else None  # what a sweeper may optimise


def _loaded(config: DictConfig, typed: list[str]) -> Callable[..., dict[str, Any]]:
    """What makes a run; loaded once the configuration is known to be right, as far as can be seen before."""
    if "torch" not in sys.modules and not is_worker_rank():
        from fedem_lightning.run.gate import check_configuration, keys_typed  # Pydantic

        check_configuration(config, keys_typed(typed))
        print("loading PyTorch and Lightning ...", flush=True)
    with loading():
        from fedem_lightning.run.execute import run
    warnings.formatwarning = warning_line  # Lightning has put its own in its place
    return run


def called_by(chosen: Mapping[str, Any]) -> dict[str, str]:
    """What results.json calls a run by: of all that was chosen, the choices of some groups."""
    return {group: str(chosen[group]) for group in CALLS_RUN if chosen.get(group)}


def main() -> None:
    """Entry point of the command line."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(usage())
    elif "--version" in sys.argv[1:]:
        print(f"fedem-lightning {fedem_lightning.__version__}")
    else:
        _compose_and_run()


def _compose_and_run() -> None:
    global _full, _sweep_goes_on, _first_failure
    sys.argv[1:] = [re.sub(r"^\+(?=(learning_rates|method_settings)\.)", "", word) for word in sys.argv[1:]]
    _typed[:], _sweep_goes_on = sys.argv[1:], ""
    _full, _first_failure = os.environ.get("HYDRA_FULL_ERROR") == "1", None
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then hands exceptions over instead of printing them
    warnings.formatwarning = warning_line
    logging.raiseExceptions = False  # a log that cannot be written, of Hydra's --info, is no trace
    try:
        check_words(sys.argv[1:])
        _hydra_main()
        sys.stdout.flush()
    except KeyboardInterrupt:  # before a run began, or between the jobs of a sweep
        _stop(f"stopped{_sweep_goes_on}")
    except (UserError, Unexpected, BrokenPipeError) as error:  # of a job of a sweep, too
        end(error, full=_full)
    except Exception as error:  # of Hydra, which ran no job; or of a sweeper all of whose jobs have failed
        end(_first_failure or not_composed(error, sys.argv[1:]), full=_full)
    finally:
        os.environ["HYDRA_FULL_ERROR"] = str(int(_full))
        if not is_worker_rank():
            remove_what_is_left()


def _describe_one_job(folder: Path, overrides: list[str]) -> None:
    """Makes the command line that of this job of a sweep: Lightning starts further processes with it."""
    global _sweep_goes_on
    hydra_config = HydraConfig.get()
    if _typed:  # else this is a worker of a launcher
        words = get_args_parser().parse_known_args(_typed)[0].overrides
        options = [word for word in _typed if word not in words]  # before: Hydra reads overrides in one piece
        command = resume_command(Path(hydra_config.sweep.dir).absolute(), words, options)
        _sweep_goes_on = f"; continue the whole sweep with: {command}"
    sys.argv[1:] = [*_config_flags(sys.argv[1:]), *overrides]
    with read_write(hydra_config):  # type: ignore[arg-type]
        hydra_config.run.dir = str(folder)


def _config_flags(arguments: list[str]) -> list[str]:
    """What says where configurations are: --config-dir, --config-name and hydra.searchpath."""
    flags = []
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if argument in ("-cd", "--config-dir", "-cn", "--config-name", "-cp", "--config-path"):
            flags += [argument, following]
        elif argument.startswith(("--config-", "hydra.searchpath=")):
            flags.append(argument)
    return flags


def _stop(line: str) -> NoReturn:
    """Exits with code 1 after a stop; the first process says how to go on."""
    if not is_worker_rank():
        print(line, file=sys.stderr)
    sys.exit(1)


def _end_job(error: Exception, folder: Path) -> NoReturn:
    """Ends a job of a sweep: Hydra first runs the other jobs, then raises what the first one raised that failed."""
    global _first_failure
    foreseen = user_message(error)
    failure = UserError(foreseen) if foreseen is not None else unexpected(error)
    if not is_worker_rank():
        if _full:
            traceback.print_exception(error)
        print(f"job {folder.name} failed: {failure}", file=sys.stderr, flush=True)
    _first_failure = _first_failure or failure
    raise failure from error
