"""The vocabulary: one word per concept, for code, commands, pages and documentation.

`docs/reference/glossary.md` is generated from this table. States and causes have their own tables in `states`.
"""

# ruff: noqa: E501 - sentences for a page

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """A word, what it means, and other words for it that are not used."""

    name: str
    meaning: str
    avoid: tuple[str, ...] = ()


GLOSSARY: dict[str, tuple[Term, ...]] = {
    "Hardware and who holds it": (
        Term(
            "cluster", "The Kubernetes cluster, or the single machine, that facts come from. Every record has its name."
        ),
        Term("node", "A machine with GPUs, identified by the UID of its Kubernetes object."),
        Term("pool", "A group of equal nodes, named by a node label. Prices can differ between pools."),
        Term(
            "slot",
            "One physical GPU position: node UID and index. The UUID of the GPU in it is an attribute that can change.",
            ("board", "place"),
        ),
        Term(
            "share",
            "The part of a slot that one holder has: MIG slices, time slices, or a fraction. The rest is `free`.",
        ),
        Term(
            "holder",
            "The pod that has a slot, from the time it is scheduled until its last container ends. If there is none, the platform.",
        ),
        Term("platform", "Who pays for slots without a holder. In `cost` it is a team of its own."),
        Term("capacity", "All slots times the time range. The states of all GPUs add up to it."),
    ),
    "Work": (
        Term(
            "workload",
            "The root object that owns pods, by cluster and UID: a Job, a PyTorchJob, a Notebook, a Deployment.",
        ),
        Term(
            "attempt",
            "One try of a workload, from its first pod until it ends or restarts. Attempts are counted from 1.",
            ("launch",),
        ),
        Term("gang", "The pods of a workload that can only work together. Training waits until all of them run."),
        Term("queue", "The Kueue or Volcano queue that admits a workload, and the quota that it draws on."),
        Term(
            "experiment",
            "A name that a user chose. It groups runs and workloads across namespaces, clusters and attempts.",
        ),
        Term("model", "What a serving workload serves. It groups replicas. A *GPU model* is the type of a GPU."),
        Term("replica", "One of several equal pods of a serving workload."),
        Term(
            "pipeline",
            "A Kubeflow pipeline. A *pipeline run* executes it once, and a *pipeline step* is one task of a run.",
        ),
        Term(
            "sweep, trial",
            "A hyperparameter search (a Katib experiment), and one of its runs, with its own parameters.",
        ),
        Term("team", "Who pays for a workload."),
        Term("user", "The person to contact about a workload."),
        Term("owner", "The workload that a finding concerns, or the node if the platform pays."),
    ),
    "Training": (
        Term(
            "run",
            "One training program over all its ranks, as the SDK reports it. A restart begins another attempt of the same run.",
            ("launch",),
        ),
        Term("rank", "One process of a run, numbered from 0 to the world size minus 1."),
        Term(
            "rank group",
            "Ranks that work in parallel along one dimension: data, tensor, pipeline stage, expert or context.",
        ),
        Term("step", "One optimizer step, counted over all attempts of a run."),
        Term(
            "phase",
            "A part of a step: data, copy, forward, backward, communication, optimizer, checkpoint, evaluate, compile.",
        ),
        Term("step window", "Consecutive steps of one rank, folded into one record about every 10 seconds."),
        Term("batch", "The samples that one rank trains on in one step."),
        Term("sample", "One item of training data. A *GPU sample* is what a GPU reported at one time."),
        Term("lineage", "Which samples are behind a step or a checkpoint, and which steps used a sample."),
        Term(
            "lifecycle",
            "The phases of a run or workload in order: queued, starting, training, interrupted, ended.",
            ("life",),
        ),
        Term("tracker", "A service that users log runs to: MLflow, Weights & Biases."),
    ),
    "Time": (
        Term(
            "time range",
            "The interval that a question is about, in whole minutes. The end is not included.",
            ("window", "night"),
        ),
        Term("slot-minute", "One slot in one minute. Its rows in the ledger add up to 60,000 milliseconds."),
        Term("reach", "How long a GPU sample counts after it was taken: twice the sampling interval, within limits."),
        Term("interval", "A stretch of time with a begin and an end that a fact holds for."),
        Term("episode", "One occurrence of a state or a cause, without long gaps."),
    ),
    "Evidence and states": (
        Term(
            "source",
            "What facts come from: a Kubernetes API server, an exporter, a Prometheus, the SDK, a tracker, a file.",
        ),
        Term("record", "One fact from a source, as it is stored. It is not changed afterwards."),
        Term(
            "evidence", "The kinds of sources that a state or a finding is known from: Kubernetes, GPU, SDK, serving."
        ),
        Term("state", "What a GPU-millisecond was spent on. Every one is in exactly one [state](causes.md#states)."),
        Term("family", "A group of states: useful, overhead, waste, platform, unknown."),
        Term(
            "ledger",
            "The table of all GPU-milliseconds by slot, minute, holder, attempt, state, evidence and price.",
            ("books",),
        ),
        Term(
            "restatement",
            "A change of states in the ledger after later evidence. Holders, milliseconds and dollars stay the same.",
        ),
        Term(
            "goodput", "`train` divided by held time. *Wall goodput* is `train` divided by the time since submission."
        ),
    ),
    "Findings": (
        Term("cause", "Why time was lost. Each [cause](causes.md) has a detector."),
        Term("detector", "The code that looks for one cause and proposes findings."),
        Term(
            "finding",
            "One occurrence of a cause: interval, owner, culprit, dollars, evidence, suggestion, and what acting would save.",
        ),
        Term("claim", "The milliseconds of the ledger that a finding explains. No millisecond is claimed twice."),
        Term("culprit", "What a finding names as responsible: a rank, a node, a GPU, a pod, a rank group, a user."),
        Term("explained, unexplained", "Waste that findings claim, and all other waste."),
        Term("baseline", "What is usual for a scope, learned from earlier sealed hours."),
        Term("score", "How findings and states compare with the known truth of a simulated cluster."),
    ),
    "Money": (
        Term(
            "price",
            "Micro-dollars per GPU-hour, by GPU model, pool, cluster, date and purchase kind. It is null where none applies.",
        ),
        Term("price book", "The file of the settings that prices come from."),
        Term("charge", "Dollars that a team owes for a day or a month."),
        Term(
            "credit",
            "Dollars returned to a team for time that policy does not charge, with an equal charge to the platform.",
        ),
        Term("closed month", "A month whose charges are frozen."),
        Term("adjustment", "A correction of a closed month. It is charged in an open month."),
        Term("budget", "A limit in dollars or GPU-hours for a team, experiment, model or user over a period."),
    ),
    "Acting": (
        Term("notification", "A message to people or their tools that a finding opened, grew or ended."),
        Term("policy", "A rule of the guard: when it acts, on what, how, and within which limits."),
        Term("action", "One thing that the guard did, would have done, or asks permission for."),
        Term("guard", "The component that applies policies. It is off unless it is configured."),
    ),
    "Storage": (
        Term("data folder", "The folder in which one server or command keeps everything."),
        Term("hot, sealed", "Rows that still change, in DuckDB, and rows of ended hours, in Parquet files."),
        Term("part", "One sealed Parquet file of one kind of record and one hour. It is never changed, only replaced."),
        Term("chunk", "A stretch of time for which the ledger is built at once."),
        Term(
            "hour sum",
            "The ledger of one hour added up by node, holder and state, so that long time ranges are answered fast.",
        ),
        Term("inbox", "Received bodies that are on disk and not yet stored."),
        Term("lake", "A folder or bucket with the parts of several clusters, read as one."),
        Term("manifest", "The list of the parts that count, with their checksums."),
    ),
}
