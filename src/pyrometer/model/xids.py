"""The codes (XID) with which NVIDIA's driver reports errors of a GPU: which are the hardware's, which a program's."""

# Codes after which NVIDIA's catalogue asks for a reset, a reboot or an exchange; 94 only kills the program, through no
# fault of its own. 63 and 92 (a row was remapped, many corrected bits) go by without harm and begin no failure.
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
    143: "the GPU did not initialise",
    149: "an NVLink went down",
    150: "an NVLink failed",
    154: "the driver asks for a reset",
    155: "an NVLink failed",
    156: "a part of it was retired",
    158: "the GPU timed out for good",
}
PROGRAM_XIDS = (13, 31, 43, 45, 68, 69, 109)  # the device plugin, too, leaves a GPU in service after these
FATAL_XIDS = frozenset(HARDWARE_XIDS) - {94}  # the GPU is out of service until it is reset or exchanged
