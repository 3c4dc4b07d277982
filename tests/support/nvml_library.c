/* A libnvidia-ml.so.1 for tests: the calls that the agent makes, with answers from the file NVML_ANSWERS.
 *
 * A line of the file is "KEY VALUE": "0.uuid GPU-1", "0.power 674000", "0/1.memory.used 5" (MIG device 1 of GPU 0).
 * A value "!15" makes the call return error 15; a key that is not there makes it return 3, not supported. Structures are
 * laid out as in NVML's header: the real pynvml reads them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };
enum { GPUS = 16, PLACES = 8, NONE = -1 };

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { int gpu, place; } Device;
typedef struct { int gpu, instance; u64 number; } Sample;

static Device gpus[GPUS], migs[GPUS][PLACES];

/* The value of a key, or the error that the call is to return. */
static int text(const Device *device, const char *name, char *value, size_t size) {
    char key[128], line[512];
    const char *path = getenv("NVML_ANSWERS");
    FILE *file = path ? fopen(path, "r") : NULL;
    int result = NOT_SUPPORTED;
    if (!device) snprintf(key, sizeof key, "%s ", name);
    else if (device->place == NONE) snprintf(key, sizeof key, "%d.%s ", device->gpu, name);
    else snprintf(key, sizeof key, "%d/%d.%s ", device->gpu, device->place, name);
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key))) continue;
        line[strcspn(line, "\n")] = 0;
        const char *found = line + strlen(key);
        if (*found == '!') result = atoi(found + 1);
        else { snprintf(value, size, "%s", found); result = OK; }
    }
    if (file) fclose(file);
    return result;
}

static int number(const Device *device, const char *name, double *value) {
    char found[512];
    int result = text(device, name, found, sizeof found);
    if (result == OK) *value = strtod(found, NULL);
    return result;
}

static int count(const Device *device, const char *name, u64 *value) {
    char found[512];
    int result = text(device, name, found, sizeof found);
    if (result == OK) *value = strtoull(found, NULL, 0);
    return result;
}

static int small(const Device *device, const char *name, u32 *value) {
    u64 found;
    int result = count(device, name, &found);
    if (result == OK) *value = (u32)found;
    return result;
}

/* The library, and which devices there are. */
int nvmlInitWithFlags(u32 flags) {
    u32 ignored;
    (void)flags;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        gpus[gpu] = (Device){gpu, NONE};
        for (int place = 0; place < PLACES; place++) migs[gpu][place] = (Device){gpu, place};
    }
    int result = small(NULL, "init", &ignored);
    return result == NOT_SUPPORTED ? OK : result;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int result) { return result == 999 ? "Unknown Error" : "An error"; }
int nvmlSystemGetDriverVersion(char *value, u32 size) { return text(NULL, "driver", value, size); }
int nvmlDeviceGetCount_v2(u32 *value) { return small(NULL, "count", value); }
int nvmlDeviceGetHandleByIndex_v2(u32 index, Device **device) {
    char ignored[8];
    *device = &gpus[index];
    int result = text(*device, "handle", ignored, sizeof ignored);
    return result == NOT_SUPPORTED ? OK : result;
}
int nvmlDeviceGetUUID(Device *device, char *value, u32 size) { return text(device, "uuid", value, size); }
int nvmlDeviceGetName(Device *device, char *value, u32 size) { return text(device, "name", value, size); }
int nvmlDeviceGetMinorNumber(Device *device, u32 *value) { return small(device, "minor", value); }
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci) { return text(device, "pci", pci->bus_id, sizeof pci->bus_id); }

/* MIG */
int nvmlDeviceGetMaxMigDeviceCount(Device *device, u32 *value) { return small(device, "mig.max", value); }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, u32 place, Device **mig) {
    char ignored[128];
    *mig = &migs[device->gpu][place];
    return text(*mig, "uuid", ignored, sizeof ignored) == OK ? OK : NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(Device *device, u32 *value) { return small(device, "instance", value); }

/* What a device says of itself */
typedef struct { u32 gpu, memory; } Rates;
int nvmlDeviceGetUtilizationRates(Device *device, Rates *rates) {
    int result = small(device, "util.gpu", &rates->gpu);
    return result ? result : small(device, "util.memory", &rates->memory);
}
int nvmlDeviceGetEncoderUtilization(Device *device, u32 *value, u32 *period_us) {
    *period_us = 100000;
    return small(device, "util.encoder", value);
}
int nvmlDeviceGetDecoderUtilization(Device *device, u32 *value, u32 *period_us) {
    *period_us = 100000;
    return small(device, "util.decoder", value);
}
typedef struct { u32 version; u64 total, reserved, free, used; } Memory;
int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory *memory) {
    if (memory->version != (sizeof(Memory) | 2 << 24)) return INVALID;
    int result = count(device, "memory.reserved", &memory->reserved);
    if (!result) result = count(device, "memory.free", &memory->free);
    if (!result) result = count(device, "memory.used", &memory->used);
    return result;
}
int nvmlDeviceGetPowerUsage(Device *device, u32 *value) { return small(device, "power", value); }
int nvmlDeviceGetTotalEnergyConsumption(Device *device, u64 *value) { return count(device, "energy", value); }
int nvmlDeviceGetTemperature(Device *device, int sensor, u32 *value) {
    return sensor ? INVALID : small(device, "temperature", value);
}
int nvmlDeviceGetClockInfo(Device *device, int clock, u32 *value) {
    return small(device, clock == 1 ? "clock.sm" : "clock.memory", value);
}
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, u64 *value) { return count(device, "reasons", value); }
int nvmlDeviceGetPcieReplayCounter(Device *device, u32 *value) { return small(device, "replays", value); }
int nvmlDeviceGetTotalEccErrors(Device *device, int kind, int counter, u64 *value) {
    char key[32];
    snprintf(key, sizeof key, "ecc.%s.%s", kind ? "uncorrected" : "corrected", counter ? "aggregate" : "volatile");
    return count(device, key, value);
}
int nvmlDeviceGetRemappedRows(Device *device, u32 *correctable, u32 *uncorrectable, u32 *pending, u32 *failed) {
    int result = small(device, "rows.correctable", correctable);
    if (!result) result = small(device, "rows.uncorrectable", uncorrectable);
    if (!result) result = small(device, "rows.pending", pending);
    return result ? result : small(device, "rows.failed", failed);
}
typedef union { double real; u32 small; u64 large; } Value;
typedef struct { u32 field, scope; long long time_us, latency_us; int kind, result; Value value; } Field;
int nvmlDeviceGetFieldValues(Device *device, int length, Field *fields) {
    for (int i = 0; i < length; i++) {
        char key[32];
        snprintf(key, sizeof key, "field.%u", fields[i].field);
        fields[i].result = small(device, key, &fields[i].value.small);
    }
    return OK;
}
typedef struct { u32 pid; u64 memory; u32 instance, compute_instance; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, u32 *length, Process *processes) {
    char found[512];
    u32 listed = 0;
    int result = text(device, "pids", found, sizeof found);
    if (result) return result;
    for (char *word = strtok(found, " "); word; word = strtok(NULL, " "), listed++)
        if (processes && listed < *length) processes[listed] = (Process){(u32)atoi(word), 1 << 20, ~0u, ~0u};
    int fits = listed <= *length;
    *length = listed;
    return fits ? OK : TOO_SMALL;
}

/* GPM: averages between two samples of one device, the earlier one first */
typedef struct { u32 version, supported; } Support;
int nvmlGpmQueryDeviceSupport(Device *device, Support *support) {
    u32 found;
    support->supported = small(device, "gpm", &found) == OK && found;
    return OK;
}
int nvmlGpmSampleAlloc(Sample **sample) { return (*sample = calloc(1, sizeof **sample)) ? OK : INVALID; }
int nvmlGpmSampleFree(Sample *sample) { free(sample); return OK; }
static int take(Device *device, int instance, Sample *sample) {
    static u64 taken;
    char ignored[8];
    int result = text(device, "gpm.sample", ignored, sizeof ignored);
    if (result && result != NOT_SUPPORTED) return result;
    *sample = (Sample){device->gpu, instance, ++taken};
    return OK;
}
int nvmlGpmSampleGet(Device *device, Sample *sample) { return take(device, NONE, sample); }
int nvmlGpmMigSampleGet(Device *device, u32 instance, Sample *sample) { return take(device, (int)instance, sample); }
typedef struct { u32 id; int result; double value; char *names[3]; } Metric;
typedef struct { u32 version, length; Sample *before, *now; Metric metrics[]; } Metrics;
int nvmlGpmMetricsGet(Metrics *asked) {
    const Sample *a = asked->before, *b = asked->now;
    if (asked->version != 1 || a->gpu != b->gpu || a->instance != b->instance || a->number >= b->number) return INVALID;
    for (u32 i = 0; i < asked->length; i++) {
        char key[48];
        if (a->instance == NONE) snprintf(key, sizeof key, "gpm.%u", asked->metrics[i].id);
        else snprintf(key, sizeof key, "gpm.%d.%u", a->instance, asked->metrics[i].id);
        asked->metrics[i].result = number(&gpus[a->gpu], key, &asked->metrics[i].value);
    }
    return OK;
}

/* Events: line "xid.N GPU CODE" is the Nth one */
typedef struct { Device *device; u64 kind, data; u32 instance, compute_instance; } Event;
static int registered[GPUS], told;
int nvmlEventSetCreate(void **set) { told = 0; memset(registered, 0, sizeof registered); *set = &told; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(Device *device, u64 kinds, void *set) {
    char ignored[8];
    (void)set;
    int result = text(device, "events", ignored, sizeof ignored);
    if (result == OK && kinds == 8) registered[device->gpu] = 1;
    return result;
}
int nvmlEventSetWait_v2(void *set, Event *event, u32 timeout_ms) {
    (void)set;
    for (u32 waited_ms = 0;; waited_ms += 10) {
        char key[16], found[64];
        int gpu, code;
        snprintf(key, sizeof key, "xid.%d", told + 1);
        int result = text(NULL, key, found, sizeof found);
        if (result == OK && sscanf(found, "%d %d", &gpu, &code) == 2) {
            told++;
            if (registered[gpu]) { *event = (Event){&gpus[gpu], 8, (u64)code, ~0u, ~0u}; return OK; }
        } else if (result != NOT_SUPPORTED && result != OK) return result;
        if (waited_ms >= timeout_ms) return TIMEOUT;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
}
