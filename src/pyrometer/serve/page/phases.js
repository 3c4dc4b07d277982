// The phases of a step, and the class that colours each.

const CLASSES = {
  data: "s-data_stall", copy: "s-infer", forward: "s-train", backward: "s-evaluate", comm: "s-comm_stall", sync: "s-comm_stall", optimizer: "s-active",
  checkpoint: "s-checkpoint", evaluate: "s-idle_held", compile: "s-startup", garbage: "s-lost_work", other: "f-platform",
};

/** What colours a phase; one that a program named itself has none of these. */
export const phaseClass = (name) => CLASSES[name] ?? "rest";

/** A key to the colours of these phases. */
export const phaseNames = (names) => [...new Set(names)].sort((one, other) => Object.keys(CLASSES).indexOf(one) - Object.keys(CLASSES).indexOf(other));
