/* The device: memory, copies, streams, events. Device memory is address space that reads as zero and takes no room until it is written to.
 *
 * Environment: NPULIFT_HOLLOW_SOC, _DEVICES, _HBM (bytes that a device has), _RESERVED (of these, what CANN itself takes), _CUBE_CORES,
 * _VECTOR_CORES, _MODE ('fake': uploads are not carried out, but small ones are remembered and can be read back; 'real': they are).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trace.h"

enum { OUT_OF_MEMORY = 207001, INVALID = 107000, DEVICES = 64, SMALL = 65536 };

static __thread int32_t current;
static uint64_t used[DEVICES];
static int fake = -1;

static uint64_t setting(const char *name, uint64_t otherwise) {
  const char *value = getenv(name);
  return value && *value ? strtoull(value, NULL, 10) : otherwise;
}

static int is_fake(void) {
  if (fake < 0) {
    const char *mode = getenv("NPULIFT_HOLLOW_MODE");
    fake = mode && !strcmp(mode, "fake");
  }
  return fake;
}

int hollow_device(void) { return current; }
int hollow_is_fake(void) { return is_fake(); }
uint64_t hollow_memory_used(int device) { return device >= 0 && device < DEVICES ? used[device] : 0; }

const char *aclrtGetSocName(void) { const char *s = getenv("NPULIFT_HOLLOW_SOC"); return s ? s : "Ascend910B2"; }
const char *aclGetRecentErrMsg(void) { return "hollow CANN: there is no device"; }
int aclrtGetDeviceCount(uint32_t *count) { *count = (uint32_t)setting("NPULIFT_HOLLOW_DEVICES", 8); return 0; }
int aclrtGetDevice(int32_t *device) { *device = current; return 0; }
int aclrtSetDevice(int32_t device) {
  uint32_t count;
  aclrtGetDeviceCount(&count);
  if (device < 0 || (uint32_t)device >= count || device >= DEVICES) return 107001;
  current = device;
  return 0;
}
int aclrtGetCurrentContext(void **context) { static char one[DEVICES]; *context = &one[current]; return 0; }
int aclrtSetCurrentContext(void *context) { (void)context; return 0; }
int aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) { (void)device; if (flags) *flags = 0; if (active) *active = 1; return 0; }
int aclrtDeviceCanAccessPeer(int32_t *can, int32_t a, int32_t b) { *can = a != b; return 0; }
int aclrtGetLogicDevIdByUserDevId(int32_t user, int32_t *logic) { *logic = user; return 0; }
int aclrtDeviceGetBareTgid(int32_t *pid) { *pid = (int32_t)getpid(); return 0; }

static int64_t cores(int kind) { return (int64_t)(kind ? setting("NPULIFT_HOLLOW_VECTOR_CORES", 48) : setting("NPULIFT_HOLLOW_CUBE_CORES", 24)); }
int aclGetDeviceCapability(uint32_t device, int info, int64_t *value) { (void)device; *value = cores(info != 0); return 0; }
int aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value) { (void)device; *value = cores(attribute > 1); return 0; }
int aclrtGetDeviceResLimit(int32_t device, int type, uint32_t *value) { (void)device; *value = (uint32_t)cores(type); return 0; }
int aclrtGetStreamResLimit(void *stream, int type, uint32_t *value) { (void)stream; *value = (uint32_t)cores(type); return 0; }
int aclrtGetResInCurrentThread(int type, uint32_t *value) { *value = (uint32_t)cores(type); return 0; }

/* --- memory --------------------------------------------------------------------------------------------------------------------- */

static uint64_t room(void) {
  uint64_t hbm = setting("NPULIFT_HOLLOW_HBM", 64ull << 30), reserved = setting("NPULIFT_HOLLOW_RESERVED", 0);
  return hbm > reserved ? hbm - reserved : 0;
}

int aclrtGetMemInfo(int attribute, size_t *free_bytes, size_t *total) {
  (void)attribute;
  *total = room();
  *free_bytes = *total > used[current] ? *total - used[current] : 0;
  return 0;
}

struct block { void *p; size_t n; int device; struct block *next; };
static struct block *blocks[1024];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block **chain(const void *p) { return &blocks[((uintptr_t)p >> 12) & 1023]; }

static int take(size_t n) {        /* books n bytes on the device, or refuses */
  uint64_t now = __atomic_add_fetch(&used[current], n, __ATOMIC_SEQ_CST);
  if (now <= room()) return 0;
  __atomic_sub_fetch(&used[current], n, __ATOMIC_SEQ_CST);
  hollow_record(HOLLOW_REFUSED, 0, 0, n, 0, 0);
  return OUT_OF_MEMORY;
}

static void *reserve(size_t n) {
  void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

int aclrtMalloc(void **p, size_t n, int policy) {
  (void)policy;
  size_t whole = (n + 4095) & ~(size_t)4095;
  if (!n) { *p = NULL; return INVALID; }
  if (take(whole)) { *p = NULL; return OUT_OF_MEMORY; }
  struct block *b = malloc(sizeof *b);
  *p = b ? reserve(whole) : NULL;
  if (!*p) {
    free(b);
    __atomic_sub_fetch(&used[current], whole, __ATOMIC_SEQ_CST);
    return OUT_OF_MEMORY;
  }
  pthread_mutex_lock(&lock);
  struct block **c = chain(*p);
  *b = (struct block){*p, whole, current, *c};
  *c = b;
  pthread_mutex_unlock(&lock);
  hollow_record(HOLLOW_MALLOC, 0, 0, whole, (uintptr_t)*p, 0);
  return 0;
}
int aclrtMallocAlign32(void **p, size_t n, int policy) { return aclrtMalloc(p, n, policy); }
int aclrtMallocWithCfg(void **p, size_t n, int policy, void *config) { (void)config; return aclrtMalloc(p, n, policy); }

int aclrtFree(void *p) {
  pthread_mutex_lock(&lock);
  for (struct block **c = chain(p); *c; c = &(*c)->next)
    if ((*c)->p == p) {
      struct block *b = *c;
      *c = b->next;
      pthread_mutex_unlock(&lock);
      munmap(p, b->n);
      __atomic_sub_fetch(&used[b->device], b->n, __ATOMIC_SEQ_CST);
      hollow_record(HOLLOW_FREE, 0, 0, b->n, (uintptr_t)p, 0);
      free(b);
      return 0;
    }
  pthread_mutex_unlock(&lock);
  return p ? INVALID : 0;
}

int aclrtMallocHost(void **p, size_t n) { return posix_memalign(p, 64, n ? n : 64) ? OUT_OF_MEMORY : 0; }
int aclrtMallocHostWithCfg(void **p, uint64_t n, void *config) { (void)config; return aclrtMallocHost(p, n); }
int aclrtFreeHost(void *p) { free(p); return 0; }
int aclrtHostRegister(void *p, uint64_t n, int type, void **device) { (void)n; (void)type; *device = p; return 0; }

/* expandable segments: address space and physical memory apart */
int aclrtReserveMemAddress(void **p, size_t n, size_t alignment, void *wish, uint64_t flags) {
  (void)alignment; (void)wish; (void)flags;
  struct block *b = malloc(sizeof *b);
  *p = b ? reserve(n) : NULL;
  if (!*p) { free(b); return OUT_OF_MEMORY; }
  pthread_mutex_lock(&lock);
  struct block **c = chain(*p);
  *b = (struct block){*p, n, -1, *c};
  *c = b;
  pthread_mutex_unlock(&lock);
  return 0;
}
int aclrtReleaseMemAddress(void *p) {
  pthread_mutex_lock(&lock);
  for (struct block **c = chain(p); *c; c = &(*c)->next)
    if ((*c)->p == p) {
      struct block *b = *c;
      *c = b->next;
      munmap(p, b->n);
      free(b);
      break;
    }
  pthread_mutex_unlock(&lock);
  return 0;
}
int aclrtMallocPhysical(void **handle, size_t n, const void *properties, uint64_t flags) {
  (void)properties; (void)flags;
  if (take(n)) return OUT_OF_MEMORY;
  struct block *b = malloc(sizeof *b);
  if (!b) return OUT_OF_MEMORY;
  *b = (struct block){NULL, n, current, NULL};
  *handle = b;
  hollow_record(HOLLOW_MALLOC, 0, 0, n, (uintptr_t)b, 0);
  return 0;
}
int aclrtFreePhysical(void *handle) {
  struct block *b = handle;
  if (!b) return INVALID;
  __atomic_sub_fetch(&used[b->device], b->n, __ATOMIC_SEQ_CST);
  hollow_record(HOLLOW_FREE, 0, 0, b->n, (uintptr_t)b, 0);
  free(b);
  return 0;
}
int aclrtMapMem(void *p, size_t n, size_t offset, void *handle, uint64_t flags) { (void)p; (void)n; (void)offset; (void)handle; (void)flags; return 0; }
int aclrtUnmapMem(void *p) { (void)p; return 0; }
int aclrtPointerGetAttributes(const void *p, void *attributes) { (void)p; memset(attributes, 0, 16); return 0; }

/* --- copies ------------------------------------------------------------------------------------------------------------------------ */

/* In fake mode nothing is written to device memory. Small uploads are kept here, by address, until a kernel writes to that address. */
struct upload { const void *p; uint32_t n; struct upload *next; char bytes[]; };
static struct upload *uploads[4096];
static uint32_t upload_count;
static pthread_mutex_t upload_lock = PTHREAD_MUTEX_INITIALIZER;
static struct upload **shelf(const void *p) { return &uploads[((uintptr_t)p >> 9) & 4095]; }

static void forget(const void *p) {
  for (struct upload **u = shelf(p); *u; u = &(*u)->next)
    if ((*u)->p == p) {
      struct upload *old = *u;
      *u = old->next;
      free(old);
      __atomic_sub_fetch(&upload_count, 1, __ATOMIC_RELAXED);
      return;
    }
}

void hollow_written(const void *p) {
  if (!__atomic_load_n(&upload_count, __ATOMIC_RELAXED) || !is_fake()) return;
  pthread_mutex_lock(&upload_lock);
  forget(p);
  pthread_mutex_unlock(&upload_lock);
}

static void keep(const void *p, const void *bytes, size_t n) {
  pthread_mutex_lock(&upload_lock);
  forget(p);
  struct upload *u = n && n <= SMALL ? malloc(sizeof *u + n) : NULL;
  if (u) {
    u->p = p;
    u->n = (uint32_t)n;
    memcpy(u->bytes, bytes, n);
    u->next = *shelf(p);
    *shelf(p) = u;
    __atomic_add_fetch(&upload_count, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&upload_lock);
}

static int kept(void *to, const void *p, size_t n) {    /* fills `to` from an upload that covers [p, p + n); 0 when there is none */
  int found = 0;
  if (!__atomic_load_n(&upload_count, __ATOMIC_RELAXED) || n > SMALL) return 0;
  pthread_mutex_lock(&upload_lock);
  const char *start = p;
  const char *base = (const char *)((uintptr_t)p & ~(uintptr_t)31);
  for (size_t back = 0; back <= SMALL && !found; back += 32, base -= 32)    /* the allocator's blocks are aligned to 32 at least */
    for (struct upload *u = *shelf(base); u; u = u->next)
      if ((const char *)u->p <= start && start + n <= (const char *)u->p + u->n) {
        memcpy(to, u->bytes + (start - (const char *)u->p), n);
        found = 1;
        break;
      }
  pthread_mutex_unlock(&upload_lock);
  return found;
}

/* What a read of device memory gives in fake mode when no upload is known: zero, or what npulift.assume set for this thread. */
static int copy(void *to, const void *from, size_t n, int kind) {
  if (!n) return 0;
  if (!to || !from) return INVALID;
  if (!is_fake() || kind == 0) { memmove(to, from, n); return 0; }
  if (kind == 1) { keep(to, from, n); return 0; }
  if (kind == 2) {
    if (!kept(to, from, n)) {
      memset(to, 0, n);
      hollow_record(HOLLOW_READ, 0, 0, n, 0, 0);      /* a value that a kernel would have made */
    }
    return 0;
  }
  if (kind == 3 && n <= SMALL) {
    char buffer[SMALL];
    if (kept(buffer, from, n)) { keep(to, buffer, n); return 0; }
  }
  hollow_written(to);
  return 0;
}

extern int32_t hollow_stream_number(const void *stream);

int aclrtMemcpy(void *to, size_t most, const void *from, size_t n, int kind) {
  (void)most;
  hollow_record(HOLLOW_COPY, 0, 0, n, (uint64_t)kind | 256, 0);
  return copy(to, from, n, kind);
}
int aclrtMemcpyAsync(void *to, size_t most, const void *from, size_t n, int kind, void *stream) {
  (void)most;
  hollow_record(HOLLOW_COPY, 0, hollow_stream_number(stream), n, (uint64_t)kind, 0);
  return copy(to, from, n, kind);
}
int aclrtMemcpyAsyncWithCondition(void *to, size_t most, const void *from, size_t n, int kind, void *stream) {
  return aclrtMemcpyAsync(to, most, from, n, kind, stream);
}
int aclrtMemcpyBatchAsync(void **to, size_t *most, void **from, size_t *n, size_t count, void *attributes, size_t *indexes, size_t many, size_t *failed, void *stream) {
  (void)attributes; (void)indexes; (void)many; (void)failed;
  for (size_t i = 0; i < count; i++) aclrtMemcpyAsync(to[i], most[i], from[i], n[i], 3, stream);
  return 0;
}
int aclrtMemset(void *p, size_t most, int value, size_t n) {
  (void)most;
  hollow_record(HOLLOW_MEMSET, 0, 0, n, 256, 0);
  if (is_fake()) hollow_written(p); else memset(p, value, n);
  return 0;
}
int aclrtMemsetAsync(void *p, size_t most, int value, size_t n, void *stream) {
  (void)most;
  hollow_record(HOLLOW_MEMSET, 0, hollow_stream_number(stream), n, 0, 0);
  if (is_fake()) hollow_written(p); else memset(p, value, n);
  return 0;
}

/* --- streams and events ------------------------------------------------------------------------------------------------------------ */

struct object { uint32_t magic; int32_t number; uint64_t recorded_ns; };
enum { STREAM = 0x57e4, EVENT = 0xe7e7 };
static int32_t streams, events;

static void *object(uint32_t magic, int32_t *count) {
  struct object *o = calloc(1, sizeof *o);
  if (!o) abort();
  o->magic = magic;
  o->number = __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
  return o;
}
int32_t hollow_stream_number(const void *stream) {
  const struct object *s = stream;
  return s && s->magic == STREAM ? s->number : 0;
}

int aclrtCreateStream(void **stream) { *stream = object(STREAM, &streams); return 0; }
int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flag) { (void)priority; (void)flag; return aclrtCreateStream(stream); }
int aclrtDestroyStream(void *stream) { (void)stream; return 0; }
int aclrtDestroyStreamForce(void *stream) { (void)stream; return 0; }
int aclrtStreamGetId(void *stream, int32_t *id) { *id = hollow_stream_number(stream); return 0; }
int aclrtStreamQuery(void *stream, int *status) { (void)stream; *status = 0; return 0; }
int aclrtSynchronizeStream(void *stream) { hollow_record(HOLLOW_SYNC, 0, hollow_stream_number(stream), 0, 1, 0); return 0; }
int aclrtSynchronizeStreamWithTimeout(void *stream, int32_t timeout) { (void)timeout; return aclrtSynchronizeStream(stream); }
int aclrtSynchronizeDevice(void) { hollow_record(HOLLOW_SYNC, 0, 0, 0, 2, 0); return 0; }
int aclrtSynchronizeDeviceWithTimeout(int32_t timeout) { (void)timeout; return aclrtSynchronizeDevice(); }

int aclrtCreateEventExWithFlag(void **event, uint32_t flag) { (void)flag; *event = object(EVENT, &events); return 0; }
int aclrtCreateEventWithFlag(void **event, uint32_t flag) { return aclrtCreateEventExWithFlag(event, flag); }
int aclrtDestroyEvent(void *event) { free(event); return 0; }
static int32_t event_number(void *event) { struct object *e = event; return e && e->magic == EVENT ? e->number : 0; }
int aclrtRecordEvent(void *event, void *stream) {
  if (event_number(event)) ((struct object *)event)->recorded_ns = hollow_now();
  hollow_record(HOLLOW_EVENT_RECORD, 0, hollow_stream_number(stream), 0, (uint64_t)event_number(event), 0);
  return 0;
}
int aclrtStreamWaitEvent(void *stream, void *event) {
  hollow_record(HOLLOW_EVENT_WAIT, 0, hollow_stream_number(stream), 0, (uint64_t)event_number(event), 0);
  return 0;
}
int aclrtSynchronizeEvent(void *event) { hollow_record(HOLLOW_SYNC, 0, 0, 0, 3, 0); (void)event; return 0; }
int aclrtQueryEventStatus(void *event, int *status) { (void)event; *status = 1; return 0; }       /* recorded: complete */
int aclrtQueryEventWaitStatus(void *event, int *status) { (void)event; *status = 0; return 0; }   /* waited for: complete */
int aclrtEventElapsedTime(float *ms, void *start, void *end) {
  struct object *a = start, *b = end;
  int right = event_number(start) && event_number(end) && b->recorded_ns > a->recorded_ns;
  *ms = right ? (float)(b->recorded_ns - a->recorded_ns) / 1e6f : 1e-3f;      /* the host's time between the two records */
  return 0;
}
int aclrtEventGetTimestamp(void *event, uint64_t *stamp) { *stamp = event_number(event) ? ((struct object *)event)->recorded_ns / 1000 : 0; return 0; }

int aclrtLaunchHostFunc(void *stream, void (*function)(void *), void *argument) { (void)stream; function(argument); return 0; }
int aclrtLaunchCallback(void (*function)(void *), void *data, int block, void *stream) { (void)block; (void)stream; function(data); return 0; }
int aclrtProcessReport(int32_t timeout) { usleep(timeout > 0 && timeout < 100 ? (unsigned)timeout * 1000 : 100000); return 0; }

/* --- what else must answer with more than 'success' -------------------------------------------------------------------------------- */

size_t aclGetCompileoptSize(int option) { (void)option; return 64; }
int aclGetCompileopt(int option, char *value, size_t n) { (void)option; snprintf(value, n, "disable"); return 0; }
int aclSetCompileopt(int option, const char *value) { (void)option; (void)value; return 0; }
int drvGetDevNum(uint32_t *count) { return aclrtGetDeviceCount(count); }
int halGetAPIVersion(int *version) { *version = 0; return 0; }
int aclsysGetVersionStr(char *package, char *version) { (void)package; strcpy(version, "hollow"); return 1; }
