"""`braid train`: trains a model of the server on .npy files."""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from braid.cli import errors, files, options, settings
from braid.cli.options import FLOAT, POSITIVE, Flags, Number, Word, option, pass_flags

if TYPE_CHECKING:
    import braid
    from braid.cli.progress import Reporter
    from braid.cli.training import Plan
    from braid.results import TrainerInfo

EPILOG = """\
Prints a progress bar on a terminal and plain lines elsewhere; --json prints an object for each
step. The trainer is deleted at the end and on Ctrl-C, unless you pass --keep-trainer or --attach.

Keys and values are those of training.proto, such as --loss cross_entropy:label_smoothing=0.1,
--optimizer AdamW:lr=0.001,beta2=0.95 and --schedule MultiStepLR:milestones=30,60,gamma=0.2.

\b
Example:
  braid train fashion --input x=train_x.npy --target target=train_y.npy --epochs 3 \\
      --batch-size 256 --optimizer SGD:lr=0.1,momentum=0.9 --publish
"""
_DATA = "Data"
_LOSS = "Loss and optimizer"
_PLACE = "How and where to compute"
_TRAINER = "Trainer"
_INT64 = Number(int, 0, (1 << 63) - 1)
_UINT64 = Number(int, 0, (1 << 64) - 1)


def _creation(name: str, group: str, **settings: Any) -> Any:
    """An option that decides what a new trainer is."""
    return option(name, group=group, decides_trainer=True, **settings)


@options.command(
    "train", help="Train a model on .npy files, over all devices of the server.\n\n"
    "MODEL is the model whose served weights the training starts from; leave it out with --attach.",
    short_help="Train a model on .npy files", epilog=EPILOG,
)  # fmt: skip
@click.argument("model", required=False)
@option(
    "--input", "inputs", multiple=True, required=True, metavar=files.FILE, group=_DATA,
    help="An input and its file; repeat for each input. The dtype must be that of the input",
)
@option(
    "--target", "targets", multiple=True, metavar=files.FILE, group=_DATA,
    help="A target and its file; repeat for each target",
)
@option(
    "--epochs", type=POSITIVE, default=1, show_default=True, metavar="N", group=_DATA,
    help="Passes over the data",
)
@option(
    "--batch-size", type=POSITIVE, default=64, show_default=True, metavar="N", group=_DATA,
    help="Rows of one step, over all devices",
)
@option(
    "--drop-last", is_flag=True, group=_DATA,
    help="Leave out the last batch of an epoch if it is smaller",
)
@option(
    "--shuffle/--no-shuffle", default=True, group=_DATA,
    help="Visit the rows in a new order in each epoch, or in the order of the file "
    "[default: shuffle]",
)
@option(
    "--seed", type=_UINT64, metavar="N", group=_DATA,
    help="Seed of the row order, and of dropout in the model [default: 0]",
)
@_creation(
    "--loss", _LOSS, multiple=True, metavar="NAME[:KEY=VALUE,…]",
    help="Loss of an output: cross_entropy (default), nll, mse, l1, smooth_l1, huber, "
    "bce_with_logits, kl_div, poisson_nll, gaussian_nll, focal, sigmoid_focal, dice, "
    "cosine_embedding, triplet_margin, ctc, or module:module=FILE for your own. Several add up, each "
    "times its weight",
)
@_creation(
    "--loss-mode", _LOSS, type=Word(("central", "per_replica", "model")),
    help="Where the loss is computed; model: the model returns it",
)
@_creation(
    "--optimizer", _LOSS, default="SGD", show_default=True, metavar="NAME[:KEY=VALUE,…]",
    help="SGD, Adam, AdamW, RMSprop or Adagrad, with the parameters and defaults of PyTorch",
)
@_creation("--lr", _LOSS, type=FLOAT, metavar="FLOAT", help="Learning rate of the optimizer")
@_creation(
    "--weight-decay", _LOSS, type=FLOAT, metavar="FLOAT", help="Weight decay of the optimizer"
)
@_creation("--momentum", _LOSS, type=FLOAT, metavar="FLOAT", help="Momentum of the optimizer")
@_creation(
    "--group", _LOSS, multiple=True, metavar="PATTERN:KEY=VALUE,…",
    help="lr, weight_decay, momentum or frozen=true for parameters whose names match the pattern",
)
@_creation(
    "--schedule", _LOSS, metavar="NAME:KEY=VALUE,…",
    help="StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR, OneCycleLR or "
    "ReduceLROnPlateau, counted in steps",
)
@_creation(
    "--warmup", _LOSS, type=_INT64, default=0, metavar="STEPS",
    help="Steps over which the learning rate first grows from a third",
)
@_creation(
    "--clip-grad-norm", _LOSS, type=FLOAT, metavar="FLOAT", help="Clip the gradients to this norm"
)
@_creation(
    "--precision", _PLACE, type=Word(("model", "bfloat16", "float16")),
    help="Autocast to this datatype",
)
@_creation(
    "--sync-batch-norm", _PLACE, is_flag=True,
    help="Compute batch normalization over the whole batch instead of the rows of each device",
)
@_creation(
    "--eval-modules", _PLACE, multiple=True, metavar="PATTERN",
    help="Run matching submodules, and everything inside them, in evaluation mode in training, "
    "such as the batch norm of a frozen backbone; repeat for each pattern",
)
@_creation(
    "--micro-batch", _PLACE, type=_INT64, default=0, metavar="ROWS",
    help="Maximum rows per forward pass on a device",
)
@_creation(
    "--stage", _PLACE, multiple=True, metavar="PATH=DEVICE,…",
    help="A submodule and its devices, in the order of the model; repeat for each stage "
    "[default: the whole model on all devices]",
)
@_creation(
    "--output-device", _PLACE, metavar="DEVICE",
    help="Where the loss is computed: a device of the server, or host",
)
@_creation(
    "--set", _PLACE, multiple=True, metavar="KEY=VALUE",
    help="Any other field of TrainingOptions, such as sync=all_reduce, non_finite=skip, "
    "clipping.max_value=1 and checkpoints.keep=5",
)
@option(
    "--attach", metavar="NAME", group=_TRAINER,
    help="Continue with this trainer, up to --epochs in all, after the batches that it has "
    "taken. Pass the data options that it was trained with. The trainer stays on the server",
)
@_creation(
    "--trainer", _TRAINER, metavar="NAME", help="Name of the trainer [default: the model's]"
)
@_creation(
    "--checkpoint-every", _TRAINER, type=_INT64, default=0, metavar="STEPS",
    help="Write a checkpoint on the server after so many steps; training then survives a restart "
    "of the server",
)
@option(
    "--depth", type=POSITIVE, default=2, show_default=True, metavar="N", group=_TRAINER,
    help="Steps in flight",
)
@option(
    "--publish", is_flag=True, group=_TRAINER,
    help="Serve the weights as the next version at the end, and wait until it is durable",
)
@option(
    "--keep-trainer", is_flag=True, group=_TRAINER,
    help="Keep the trainer on the server, also when interrupted",
)
@option(
    "--split", is_flag=True,
    help="Print how the first batch was split: devices, rows and shapes of each stage",
)
@pass_flags
@click.pass_context
def command(ctx: click.Context, flags: Flags, **given: Any) -> None:
    _check_attach(ctx, given)
    dataset = files.Dataset(
        files.named_files("--input", given["inputs"]),
        files.named_files("--target", given["targets"]),
    )
    targets = list(files.named_files("--target", given["targets"]))
    request = None if given["attach"] else trainer_request(given, targets)

    from braid.cli.training import Plan

    plan = Plan(
        epochs=given["epochs"],
        batch_size=given["batch_size"],
        drop_last=given["drop_last"],
        shuffle=given["shuffle"],
        depth=given["depth"],
        report_split=given["split"],
    )
    if plan.steps_per_epoch(dataset.rows) == 0:
        raise errors.usage(
            "--drop-last", f"leaves no batch of the {dataset.rows} rows",
            f"expected --batch-size {plan.batch_size} or more rows",
        )  # fmt: skip
    with settings.connect(flags) as client, _Interruption() as interruption:
        code = _train(client, request, given, plan, dataset, flags.json, interruption)
    ctx.exit(code)


def _check_attach(ctx: click.Context, given: Mapping[str, Any]) -> None:
    """UsageError for a trainer that both exists and is to be created, or neither."""
    if not given["attach"]:
        if not given["model"]:
            raise errors.usage("MODEL", "missing", "expected a model, or --attach")
        return
    for param in ctx.command.params:
        decides = isinstance(param, options.Option) and param.decides_trainer
        if decides and options.given_on_command_line(ctx, param):
            raise errors.usage(
                param.opts[0], "given with --attach", "decided when a trainer is created"
            )


def trainer_request(given: Mapping[str, Any], targets: Sequence[str]) -> Any:
    """Returns the CreateTrainerRequest that the options describe.

    Options that were not given are left to the server, whose defaults are those of PyTorch.
    targets: their names.
    """
    from braid._protocol import TRAINING
    from braid.cli import specs

    request = TRAINING["CreateTrainer"].request(
        model=given["model"], name=given["trainer"] or "", request_id=str(uuid.uuid4())
    )
    _fill_options(request.options, given)
    _fill_optimizer(request.optimizer, given)
    by_model = request.options.loss_mode == specs.LOSS_MODE_MODEL
    request.losses.extend(_losses(given["loss"], targets, by_model))
    return request


def _fill_options(message: Any, given: Mapping[str, Any]) -> None:
    from braid.cli import specs

    for name in ("loss_mode", "precision"):
        if given[name]:
            specs.set_fields(f"--{name.replace('_', '-')}", f"{name}={given[name]}", message)
    for setting in given["set"]:
        specs.set_fields("--set", setting, message)
    message.parameter_groups.extend(map(specs.parse_group, given["group"]))
    message.stages.extend(map(specs.parse_stage, given["stage"]))
    if given["schedule"]:
        specs.parse_schedule(given["schedule"], message.schedule)
    if given["warmup"]:
        message.schedule.warmup.steps = given["warmup"]
    if given["clip_grad_norm"] is not None:
        message.clipping.max_norm = given["clip_grad_norm"]
    if given["sync_batch_norm"]:
        message.sync_batch_norm = True
    message.eval_modules.extend(given["eval_modules"])
    if given["micro_batch"]:
        message.micro_batch = given["micro_batch"]
    if given["output_device"]:
        message.output_device = given["output_device"]
    if given["seed"] is not None:
        message.seed = given["seed"]
    if given["checkpoint_every"]:
        message.checkpoints.every_operations = given["checkpoint_every"]


def _fill_optimizer(message: Any, given: Mapping[str, Any]) -> None:
    from braid.cli import specs

    message.CopyFrom(specs.parse_optimizer(given["optimizer"]))
    chosen = getattr(message, message.WhichOneof("kind"))
    for name in ("lr", "weight_decay", "momentum"):
        if given[name] is not None:
            where = f"--optimizer {given['optimizer']}"
            specs.set_fields(where, f"{name}={given[name]!r}", chosen)


def _losses(given: Sequence[str], targets: Sequence[str], by_model: bool) -> Iterator[Any]:
    from braid.cli import specs

    for spec in given or ["" if by_model else "cross_entropy"]:
        loss = specs.parse_loss(spec)
        if not by_model and not loss.target and loss.name != "triplet_margin":
            if len(targets) != 1:
                known = f"expected target=NAME, one of: {', '.join(targets)}"
                raise errors.usage(
                    f"--loss {spec}", "has no target", known if targets else "expected a --target"
                )
            loss.target = targets[0]
        yield loss


class _Interruption(contextlib.AbstractContextManager["_Interruption"]):
    """While it is entered, a first SIGINT or SIGTERM asks to stop; a second one ends the process.

    signal: the one that asked to stop; 0: none did.
    """

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> _Interruption:
        self._before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _: object) -> None:
        self.signal = number
        signal.signal(number, signal.SIG_DFL)


def _train(
    client: braid.Client,
    request: Any,
    given: Mapping[str, Any],
    plan: Plan,
    dataset: files.Dataset,
    json: bool,
    interruption: _Interruption,
) -> int:
    """Creates or finds the trainer, trains, publishes, and deletes it. Returns the exit code."""
    import dataclasses

    from braid import _replies
    from braid._protocol import TRAINING
    from braid.cli.training import batches_taken
    from braid.trainer import Trainer

    if request is None:
        info = client.trainer(given["attach"]).info()
        files.check_rows_first(client, info.model)
        _check_attached(given, info, plan.steps_per_epoch(dataset.rows))
    else:
        files.check_rows_first(client, given["model"])
        reply = client._channel.call(TRAINING["CreateTrainer"], request)
        info = _replies.trainer_info(reply.trainer)
    trainer = Trainer(client, info)
    seed = info.options.get("seed", 0) if given["seed"] is None else given["seed"]
    plan = dataclasses.replace(plan, seed=seed)
    made = batches_taken(info)
    try:
        code = _run(trainer, info, plan, dataset, made, given["publish"], json, interruption)
    except BaseException as error:
        _leave(trainer, given, error)
        raise
    _leave(trainer, given, None)
    return code


def _check_attached(given: Mapping[str, Any], info: TrainerInfo, steps: int) -> None:
    """UsageError if the trainer is of another model, or has nothing left to do."""
    from braid.cli.training import batches_taken

    if given["model"] and given["model"] != info.model:
        raise errors.usage(
            "--attach", f"trainer {info.name} trains model {info.model}",
            f"MODEL is {given['model']}",
        )  # fmt: skip
    taken, wanted = batches_taken(info), given["epochs"] * steps
    if taken >= wanted:
        raise errors.usage(
            "--attach", f"trainer {info.name} has already taken {taken} batches",
            f"--epochs {given['epochs']} is {wanted} batches from the trainer's start; use a larger --epochs",
        )  # fmt: skip


def _run(
    trainer: braid.Trainer,
    info: TrainerInfo,
    plan: Plan,
    dataset: files.Dataset,
    made: int,
    publish: bool,
    json: bool,
    interruption: _Interruption,
) -> int:
    from braid.cli import progress
    from braid.cli.training import run_steps

    start = time.monotonic()
    reporter = progress.Reporter(
        progress.printer(json), plan.epochs, plan.steps_per_epoch(dataset.rows), made
    )
    _announce(info, reporter)
    with reporter:
        run_steps(plan, dataset, made, trainer, reporter, lambda: interruption.signal != 0)
    if interruption.signal:
        steps = reporter.total_steps
        errors.report(errors.Failure(f"interrupted after {steps} steps (CANCELLED)"))
        return 128 + interruption.signal
    _summarize(reporter, time.monotonic() - start)
    if publish:
        version = trainer.publish(wait_durable=True)
        reporter.message(
            f"published {info.model} version {version}",
            {"event": "published", "model": info.model, "version": version},
        )
    return 0


def _announce(info: TrainerInfo, reporter: Reporter) -> None:
    at = f", at step {info.step}" if info.step else ""
    reporter.message(
        f"trainer {info.name} from {info.model} version {info.base_version} on "
        f"{', '.join(info.devices)}{at}",
        {
            "event": "trainer",
            "trainer": info.name,
            "model": info.model,
            "base_version": info.base_version,
            "step": info.step,
            "devices": list(info.devices),
        },
    )


def _summarize(reporter: Reporter, seconds: float) -> None:
    from braid.cli.progress import loss_text, rate_text

    steps, rows = reporter.total_steps, reporter.total_rows
    rate = rows / seconds if seconds > 0 else 0.0
    reporter.message(
        f"trained {steps} steps on {rows} rows in {seconds:.1f} s, {rate_text(rate)} "
        f"rows/s, last epoch's mean loss {loss_text(reporter.mean_loss)}",
        {
            "event": "summary",
            "steps": steps,
            "rows": rows,
            "seconds": seconds,
            "rows_per_second": rate,
            "mean_loss": reporter.mean_loss,
        },
    )


def _leave(
    trainer: braid.Trainer, given: Mapping[str, Any], error: BaseException | None
) -> None:
    """Deletes the trainer, unless it is to be kept. error: why the training ended, if it failed."""
    import braid

    if given["keep_trainer"] or given["attach"]:
        return
    try:
        if isinstance(error, braid.Unavailable):
            raise error  # Another call would only take longer to fail.
        trainer.delete()
    except braid.BraidError as failure:
        click.echo(f"braid: the trainer {trainer.name} may be left on the server", err=True)
        if error is None:
            raise failure
