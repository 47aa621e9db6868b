"""The last stages of a run: figures and certificate of the sampled distribution, and report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch

from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import best_within
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStore
from gflownet.files import json_text
from gflownet.learning.learner import Learner
from gflownet.learning.replay import ReplayBuffer
from gflownet.learning.sampler import conditions_of
from gflownet.mdp.states import GraphStates
from gflownet.records.status import Phase
from gflownet.report.architectures import Leader
from gflownet.report.closing import print_results
from gflownet.report.results import SamplerResults
from gflownet.run.components import Components
from gflownet.run.failures import Quarantine, refuse_failures
from gflownet.run.final_stage import FinalTrainingsStage
from gflownet.run.folder import CERTIFICATE_NAME, CERTIFICATE_STORE_NAME
from gflownet.run.run import Run
from gflownet.run.search_stage import leaders_of
from gflownet.search.proposals import distinct
from gflownet.search.sampler import RewardScale, balance_correlation, score_column
from gflownet.terminal.interrupts import AbandonedError
from gflownet.workers.process import Stream, stream_seed

NUM_LOGGED = 100  # candidates in the tables of wandb and TensorBoard at the end


def sampler_results(parts: Components, scale: RewardScale, rows: Sequence[EvaluationRecord]) -> SamplerResults:
    """Return the figures of a sampler: scores of trained samples and of random architectures, and p against R.

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
    num, policy = len(states), sampler.learner.sampling
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
    if random and trained and parts.env.is_readable(search.history.states):
        from_dict = parts.env.terminal_type.from_dict
        predicted = model(parts.env.states_of([from_dict(json.loads(row.graph)) for row in random]))
        first = predicted if predicted.dim() == 1 else predicted[:, score_column(parts.task) or 0]
        chosen = [random[place].score for place in first.argsort(descending=True, stable=True)[: len(trained)]]
    return SamplerResults(
        num_trained_on=sampler.num_trained_on,
        num_samples=len(batch),
        num_distinct=num,
        num_known=sum(place is not None and place < sampler.num_trained_on for place in places),
        scores=tuple(trained.values()),
        parameters=tuple(own.values()),
        random_scores=tuple(row.score for row in random),
        chosen_scores=tuple(chosen),
        random_predicted=scale.random_score,
        rank_correlation=balance_correlation(sampler.learner, replace(batch, optional_log_reward=rewards)),
        flow_consistency=consistency.value,
        is_converged=bool(consistency.high <= CONVERGED),
    )


def of_their_sizes(rows: Sequence[EvaluationRecord], sizes: Iterable[int | None]) -> list[EvaluationRecord]:
    """Return the random architectures of a run between the smallest and the largest size, all where none is known."""
    random = [row for row in rows if row.seed == RANDOM_REPEAT and row.status is EvaluationStatus.OK]
    known = [size for size in sizes if size is not None]
    return [row for row in random if not known or min(known) <= (row.num_parameters or 0) <= max(known)]


def certify_run(
    run: Run, parts: Components, evaluator: Dispatcher, *, learner: Learner, replay: ReplayBuffer
) -> Mapping[str, Any] | None:
    """Measure the sampler of a search, compare the sampled distribution with the reward, and return the certificate.

    None: off, after a signal, or without a policy. `evaluator` is that of the search.
    """
    scale = parts.sampler.scale
    with run.phase(Phase.CERTIFICATE if parts.config.certify else Phase.REPORT):
        if scale is not None and not run.is_stopped and parts.sampler.is_used:
            run.record(sampler=sampler_results(parts, scale, [*run.store.of_run(parts.run_id)]))
        if not parts.config.certify or run.is_stopped:
            return None
        if parts.search.method.trains_policy:
            states = replay.sample(parts.config.certify_samples, seed=_seed(parts))
            return _certified(run, parts, evaluator, learner, None if states is None else states.terminal)
        if scale is not None:
            states = parts.search.history.states[: parts.config.certify_samples]
            return _certified(run, parts, evaluator, learner, states)
        run.logger.print(f"certificate: none, search.method={parts.config.search.method} has trained no policy")
        return None


def _certified(
    run: Run, parts: Components, evaluator: Dispatcher, learner: Learner, extra_states: GraphStates | None
) -> Mapping[str, Any] | None:
    # Imported here: it takes a second, which runs without a certificate save.
    from gflownet.certificate import CertificateStore, Subject, certify
    from gflownet.certificate.words import certificate_content, certificate_metrics

    config, scale, folder = parts.config, parts.sampler.scale, run.folder.path
    extra_store = EvaluationStore(folder / CERTIFICATE_STORE_NAME, context=run.store.context)
    store = CertificateStore(evaluator.store, extra_store)
    evaluator = parts.build_evaluator(store, evaluator.executor, stopped=lambda: run.is_stopped)
    with extra_store, closing(evaluator):
        subject = Subject(
            context=parts.context,
            task=parts.task,
            policy=learner.sampling,
            objective=learner.objective,
            trained=learner.trained,
            evaluator=evaluator,
            store=store,
            step=parts.step,
            seed=_seed(parts),
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
    if certificate is None:
        return None
    head: dict[str, Any] = {"run": parts.run_id, "method": config.algo.method, "symmetry": config.algo.symmetry}
    head |= {"seed": config.seed, "step": parts.step, "num_distinct": parts.progress.num_distinct}
    content = certificate_content(certificate, run=head)
    run.folder.write(folder / CERTIFICATE_NAME, json_text(content, indent=1))
    run.record(certificate=certificate_metrics(certificate))
    return content


def _seed(parts: Components) -> int:
    return stream_seed(parts.config.seed, Stream.CERTIFICATE)


def report_run(
    run: Run,
    parts: Components,
    quarantine: Quarantine,
    final: FinalTrainingsStage,
    certificate: Mapping[str, Any] | None,
) -> None:
    """Print the results and the certificate. Raises UserError for the first file that could not be written."""
    with run.phase(Phase.REPORT):
        show_results(run, parts, final.records)
    if not run.results.finalists and not run.is_stopped:
        refuse_failures(run.store, run=parts.run_id, num_planned=parts.plan.num_search)
    if quarantine.num:
        run.logger.print(quarantine.line())
    if certificate is not None:
        from gflownet.certificate.words import print_certificate

        print_certificate(certificate, path=run.folder.path / CERTIFICATE_NAME, console=run.logger.console)
    if final.write_errors:
        raise final.write_errors[0]


def show_results(run: Run, parts: Components, finalists: Sequence[EvaluationRecord]) -> None:
    """Print the results, and log the best architectures and the other candidates of the search."""
    print_results(run.results, run.folder.path, run.logger.console)
    if not run.logger.has_media:
        return
    best, hashes = best_within(run.store, NUM_LOGGED, parts.task.limits), {each.hash for each in finalists}
    records = [*finalists, *(record for record in best if record.hash not in hashes)]

    def rows() -> list[Leader]:
        best, leaders = run.results.finalists, leaders_of(parts, records)
        ranked = [replace(row, finalist=each) for each, row in zip(best, leaders, strict=False)]
        others = leaders[len(ranked) :]
        return [*ranked, *(replace(row, finalist=replace(row.finalist, rank=None)) for row in others)]

    run.logger.write_leaders([*(record.hash for record in records), "final"], rows)
