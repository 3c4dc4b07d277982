"""XIDs, the error codes of NVIDIA's driver: which mean a hardware failure, and which a program error."""

# For these codes NVIDIA's catalog asks for a reset, a reboot or a replacement. 94 only kills the program, which did
# nothing wrong. 63 and 92 (a remapped row, many corrected bits) are harmless and not listed.
HARDWARE_XIDS = {
    46: "the GPU stopped answering",
    48: "an uncorrectable memory error",
    62: "its power controller halted",
    64: "a bad memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "its system processor (GSP) did not answer",
    120: "its system processor (GSP) failed",
    136: "an NVLink did not come up",
    140: "an unrecovered memory error",
    143: "the GPU did not initialize",
    149: "an NVLink went down",
    150: "an NVLink failed",
    154: "the driver asks for a reset",
    155: "an NVLink failed",
    156: "a part of the GPU was retired",
    158: "the GPU timed out permanently",
}
PROGRAM_XIDS = (13, 31, 43, 45, 68, 69, 109)  # the device plugin keeps a GPU in service after these, too
FATAL_XIDS = frozenset(HARDWARE_XIDS) - {94}  # the GPU is out of service until it is reset or replaced
