// The phases of a step and their CSS classes.

const CLASSES = {
  data: "s-data_stall", copy: "s-infer", forward: "s-train", backward: "s-evaluate", comm: "s-comm_stall", sync: "s-comm_stall", optimizer: "s-active",
  checkpoint: "s-checkpoint", evaluate: "s-idle_held", compile: "s-startup", garbage: "s-lost_work", other: "f-platform",
};

/** The CSS class with the color of a phase. Phases that a program defines share one. */
export const phaseClass = (name) => CLASSES[name] ?? "rest";

/** These phases in the order of the legend. */
export const phaseNames = (names) => [...new Set(names)].sort((one, other) => Object.keys(CLASSES).indexOf(one) - Object.keys(CLASSES).indexOf(other));
