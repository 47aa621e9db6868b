"""The last stages of a run: certificate of the sampled distribution, and report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from gflownet.cli.interrupts import AbandonedError
from gflownet.data.sampler import conditions_of
from gflownet.errors import UserError
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import best_within
from gflownet.evaluation.final import TopArchitecture
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStore
from gflownet.files import json_text
from gflownet.records.status import Phase
from gflownet.report.architectures import Leader, final_leaders
from gflownet.report.closing import report_run
from gflownet.report.verdict import sampler_lines, sampler_metrics
from gflownet.run.components import Components
from gflownet.run.failures import Quarantine, refuse_failures
from gflownet.run.final_stage import FinalTrainingsStage, best_tested
from gflownet.run.folder import CERTIFICATE_NAME, CERTIFICATE_STORE_NAME, SAMPLER_NAME
from gflownet.run.plan import NUM_REPORTED
from gflownet.run.progress import mean
from gflownet.run.run import Run
from gflownet.run.search_stage import closing_line, leaders_of
from gflownet.run.stage import Stage
from gflownet.search.proposals import distinct
from gflownet.search.sampler import RewardScale, balance_correlation, score_column
from gflownet.workers.process import Stream, stream_seed

if TYPE_CHECKING:
    from gflownet.certificate import RunCertificate


_PREFERRED = 0.95  # weight of an objective that samples prefer
NUM_LOGGED = 100  # candidates in the tables of wandb and TensorBoard at the end


def sampler_record(parts: Components, scale: RewardScale, rows: Sequence[EvaluationRecord]) -> dict[str, Any]:
    """Return the figures of sampler.json: scores of trained samples and of random architectures, and p against R.

    The correlation is that of the steps of its training (`balance_correlation`), the flow consistency that under the
    condition of the first sample. The samples are compared with the random architectures of their sizes, and with as
    many of these as there are samples, chosen by the predictions that the sampler has learned.
    """
    # Imported here: it takes a second, which runs without a sampler save.
    from gflownet.certificate import estimates
    from gflownet.certificate.words import CONVERGED

    search, sampler = parts.search, parts.sampler
    batch, seed = sampler.samples(), stream_seed(parts.config.seed, Stream.CERTIFICATE)
    states, generator = distinct(parts.env, batch.terminal), torch.Generator().manual_seed(seed)
    num, policy = len(states), parts.learner.sampling
    one = conditions_of(batch)[torch.zeros(num, dtype=torch.int64)]
    num_rollouts = estimates.NUM_ROLLOUTS
    rollouts = estimates.rolled_back(parts.context, policy, states, one, num=num_rollouts, generator=generator)
    ratios = estimates.log_ratio(parts.context, policy, rollouts).reshape(num, num_rollouts)
    log_prob = estimates.terminating_log_prob(ratios, rollouts.log_symmetry[::num_rollouts])
    model = sampler.score_model()
    log_reward = scale.log_reward(model(states), one)
    rewards = scale.log_reward(model(batch.terminal), conditions_of(batch)).float()
    subsets = estimates.disjoint_subsets(num, size=min(num, estimates.SUBSET_SIZE), generator=generator)
    consistency = estimates.flow_consistency(log_prob, log_reward, subsets, seed=seed)
    places = [search.history.position(code) for code in parts.env.identify(states).tolist()]
    trained = {each.hash: each.score for each in sampler.verified}
    own = {row.hash: row.num_parameters for row in rows if not row.seed and row.hash in trained}
    random = of_their_sizes(rows, own.values())
    chosen = list[float]()
    if random and trained:
        from_dict = parts.env.terminal_type.from_dict
        predicted = model(parts.env.states_of([from_dict(json.loads(row.graph)) for row in random]))
        first = predicted if predicted.dim() == 1 else predicted[:, score_column(parts.task) or 0]
        chosen = [random[place].score for place in first.argsort(descending=True, stable=True)[: len(trained)]]
    return {
        "format": 1,
        "num_trained_on": sampler.num_trained_on,
        "num_samples": len(batch),
        "num_distinct": num,
        "num_known": sum(place is not None and place < sampler.num_trained_on for place in places),
        "scores": list(trained.values()),
        "parameters": list(own.values()),
        "random_scores": [row.score for row in random],
        "chosen_scores": chosen,
        "random_predicted": scale.random_score,
        "rank_correlation": balance_correlation(parts.learner, replace(batch, optional_log_reward=rewards)),
        "flow_consistency": consistency.value,
        "is_converged": consistency.high <= CONVERGED,
        "preferences": preferred(parts, scale),
    }


def of_their_sizes(rows: Sequence[EvaluationRecord], sizes: Iterable[int | None]) -> list[EvaluationRecord]:
    """Return the random architectures of a run between the smallest and the largest size, all where none is known."""
    random = [row for row in rows if row.seed == RANDOM_REPEAT and row.status is EvaluationStatus.OK]
    known = [size for size in sizes if size is not None]
    return [row for row in random if not known or min(known) <= (row.num_parameters or 0) <= max(known)]


def preferred(parts: Components, scale: RewardScale) -> list[dict[str, Any]]:
    """Return predicted utilities and sizes of samples that prefer each objective in turn; none without preferences."""
    names, task = parts.task.chosen_objectives, parts.task
    if scale.scores.dim() == 1 or parts.config.cond.preferences.weights:
        return []
    model, entries = parts.sampler.score_model(), list[dict[str, Any]]()
    for place, name in enumerate(names):
        weights = [_PREFERRED if each == place else (1 - _PREFERRED) / (len(names) - 1) for each in range(len(names))]
        terminal = parts.sampler.samples(preferences=weights).terminal
        costs = [task.cost(parts.env.terminal(terminal, index)) for index in range(len(terminal))]
        sizes = [float(cost.num_parameters) for cost in costs if cost is not None]
        utilities = dict(zip(names, model(terminal).mean(0).tolist(), strict=True))
        parameters = mean(sizes) if sizes else None
        entries.append({"objective": name, "weight": _PREFERRED, "utilities": utilities, "parameters": parameters})
    return entries


@dataclass
class CertificateStage(Stage):
    """Compare the sampled distribution with the reward."""

    parts: Components
    evaluator: Dispatcher  # of the search
    result: RunCertificate | None = None  # before, and without a certificate: off, after a signal, or without a policy

    def run(self, run: Run) -> None:
        """Write and log the certificate."""
        with run.phase(Phase.CERTIFICATE):
            self.result = self._certify(run)

    def _certify(self, run: Run) -> RunCertificate | None:
        parts, config = self.parts, self.parts.config
        if not config.certify or run.is_stopped:
            return None
        trains_policy, scale = parts.search.method.trains_policy, parts.sampler.scale
        if not trains_policy and scale is None:
            run.logger.print(f"certificate: none, search.method={config.search.method} has trained no policy")
            return None
        # Imported here: it takes a second, which runs without a certificate save.
        from gflownet.certificate import CertificateStore, Subject, certify
        from gflownet.certificate.words import certificate_metrics, write_certificate

        seed = stream_seed(config.seed, Stream.CERTIFICATE)
        states = parts.replay.sample(config.certify_samples, seed=seed)
        extra_states = None if states is None else states.terminal
        if not trains_policy:
            extra_states = parts.search.history.states[: config.certify_samples]
        folder = run.folder.path
        extra_store = EvaluationStore(folder / CERTIFICATE_STORE_NAME, context=parts.scoring_context)
        store = CertificateStore(self.evaluator.store, extra_store)
        evaluator = parts.build_evaluator(store, self.evaluator.executor, stopped=lambda: run.is_stopped)
        with extra_store, closing(evaluator):
            subject = Subject(
                context=parts.context,
                task=parts.task,
                policy=parts.learner.sampling,
                objective=parts.objective,
                trained=parts.learner.trained,
                evaluator=evaluator,
                store=store,
                step=parts.step,
                seed=seed,
                predict=None if scale is None else parts.sampler.score_model(),
                scale=None if scale is None else scale.log_reward,
            )
            try:
                with run.stop.abandonable():
                    certificate = certify(
                        subject,
                        max_states=config.certify_max_states,
                        num_samples=config.certify_samples,
                        extra_states=extra_states,
                        report_stage=run.logger.print,
                        report_progress=run.logger.view.stage,
                        stopped=lambda: run.is_stopped,
                    )
            except AbandonedError:
                run.logger.print("certificate: none, interrupted")
                return None
        if certificate is not None:
            head: dict[str, Any] = {"run": parts.run_id, "method": config.algo.method, "symmetry": config.algo.symmetry}
            head |= {"seed": config.seed, "step": parts.step, "num_distinct": parts.progress.num_distinct}
            write_certificate(folder / CERTIFICATE_NAME, certificate, run=head)
            run.logger.summarise(certificate_metrics(certificate))
        return certificate


@dataclass
class ReportStage(Stage):
    """Write and print the best architectures, the certificate and the reason for the end."""

    parts: Components
    evaluator: Dispatcher
    quarantine: Quarantine
    final: FinalTrainingsStage
    certificate: CertificateStage

    def run(self, run: Run) -> None:
        """Write and print the report. Raises UserError for the first file that could not be written."""
        certificate = self.certificate.result
        with run.phase(Phase.REPORT):
            write_errors = self.write(run)
        if self.quarantine.num:
            run.logger.print(self.quarantine.line())
        if certificate is not None:
            from gflownet.certificate.words import print_certificate

            print_certificate(certificate, path=run.folder.path / CERTIFICATE_NAME, console=run.logger.console)
        run.logger.print(closing_line(self.parts))
        if not self.parts.search.method.trains_policy:
            self._report_sampler(run)
        if write_errors:
            raise write_errors[0]

    def _report_sampler(self, run: Run) -> None:
        """Write and print what the sampler has learned."""
        parts, scale = self.parts, self.parts.sampler.scale
        if scale is None:
            run.logger.print("sampler: none was trained")
        elif not run.is_stopped:
            record = sampler_record(parts, scale, [row for row in run.store if row.run == parts.run_id])
            run.folder.write(run.folder.path / SAMPLER_NAME, json_text(record, indent=1))
            run.logger.summarise(sampler_metrics(record))
            for line in sampler_lines(record):
                run.logger.print(line)

    def write(self, run: Run) -> list[UserError]:
        """Write and print the best architectures; return the errors of files that could not be written."""
        parts, store, final = self.parts, run.store, self.final.result
        task, limits = parts.task, parts.task.limits
        if final is None:
            top = best_tested(parts, best_within(store, NUM_REPORTED, limits), self.evaluator.executor, run)
        else:
            top = final.top
        write_errors = report_run(
            run.folder.path,
            top,
            task=task,
            terminal_type=parts.env.terminal_type,
            score_means=parts.progress.score_means,
            errors=parts.progress.errors,
            console=run.logger.console,
            final=final,
            evaluated=best_within(store, store.count(), limits) if task.chosen_objectives else (),
            num_successful=store.count(EvaluationStatus.OK),
            spent=(row for row in store if row.run == parts.run_id) if task.is_noisy else (),
            write=run.folder.write,
        )
        self._write_candidates(run, top)
        if not top and not run.is_stopped:
            refuse_failures(store, run=parts.run_id, num_planned=parts.plan.num_search)
        return write_errors

    def _write_candidates(self, run: Run, top: Sequence[TopArchitecture]) -> None:
        """Log the best architectures as in top_architectures.json, and then the other candidates of the search."""
        if not run.logger.has_media:
            return
        finalists = [each.record for each in top]
        hashes, best = {each.hash for each in finalists}, best_within(run.store, NUM_LOGGED, self.parts.task.limits)
        records = [*finalists, *(record for record in best if record.hash not in hashes)]

        def rows() -> list[Leader]:
            leaders = leaders_of(self.parts, records)
            final = [
                replace(each, search_score=row.search_score, origin=row.origin, seconds=row.seconds)
                for each, row in zip(final_leaders(run.folder.path), leaders, strict=False)
            ]
            return [*final, *(replace(each, rank=None) for each in leaders[len(final) :])]

        run.logger.write_leaders([*(record.hash for record in records), "final"], rows)
