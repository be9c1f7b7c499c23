/* Kernels that do nothing but are written down: handles of tensors, scalars and arrays, and the two halves of every aclnn call.
 *
 * aclnnNameGetWorkspaceSize(arguments..., uint64_t *workspace, aclOpExecutor **executor) is given the arguments; aclnnName(workspace, size,
 * executor, stream) launches, perhaps later and from another thread (torch_npu's task queue). So the first half packs what it saw into an
 * object of ours and hands it back as the executor, and the second half gets it again: order and tensors are right with the queue on, too.
 * The first half does not know how many arguments there are. Its last two are addresses on the caller's stack, neighbours in the argument
 * list, and the second of them holds a null pointer: the first such pair ends the list.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "trace.h"

enum { TENSOR = 0x7e4501, TENSOR_LIST, SCALAR, SCALAR_LIST, INT_ARRAY, BOOL_ARRAY, FLOAT_ARRAY, EXECUTOR, DESCRIPTION, BUFFER, ATTRIBUTES };
enum { DIMS = 16, SLOT = 512, SLOTS = 1 << 20, ARGUMENTS = 64 };

struct handle {
  uint32_t kind, count;          /* count: elements of a list or array, dims of a tensor */
  int32_t dtype, format;
  int64_t offset;
  union { void *data; struct handle **list; int64_t *ints; double number; struct handle *next; };
  union {
    struct { int64_t dims[DIMS], strides[DIMS], storage[DIMS]; };
    struct { uint32_t function, signature, op; } launch;
  };
};

extern const char *const hollow_functions[];
extern int32_t hollow_stream_number(const void *stream);
extern void hollow_written(const void *address);

static char *arena;
static struct handle *unused;
static uint32_t used;
static pthread_spinlock_t guard;

__attribute__((constructor)) static void begin(void) {
  pthread_spin_init(&guard, PTHREAD_PROCESS_PRIVATE);
  arena = mmap(NULL, (size_t)SLOT * SLOTS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) arena = NULL;
}

static struct handle *make(uint32_t kind) {
  struct handle *h = NULL;
  pthread_spin_lock(&guard);
  if (unused) {
    h = unused;
    unused = h->next;
  } else if (arena && used < SLOTS) {
    h = (struct handle *)(arena + (size_t)SLOT * used++);
  }
  pthread_spin_unlock(&guard);
  if (!h) {                       /* more handles than anyone holds at a time: it works, but the trace does not know it */
    h = calloc(1, SLOT);
    if (!h) abort();
  }
  h->kind = kind;
  h->count = 0;
  h->data = NULL;
  return h;
}

static int is_handle(const void *p) {
  return arena && (const char *)p >= arena && (const char *)p < arena + (size_t)SLOT * SLOTS && !(((const char *)p - arena) & (SLOT - 1));
}

static void drop(struct handle *h) {
  if (!is_handle(h)) return;      /* null, or one made outside the arena (leaked on purpose) */
  if (h->kind != TENSOR && h->kind != SCALAR && h->kind != EXECUTOR && h->kind != DESCRIPTION && h->kind != BUFFER) free(h->data);
  h->kind = 0;
  pthread_spin_lock(&guard);
  h->next = unused;
  unused = h;
  pthread_spin_unlock(&guard);
}

/* --- handles ------------------------------------------------------------------------------------------------------------------ */

void *aclCreateTensor(const int64_t *dims, uint64_t n, int dtype, const int64_t *strides, int64_t offset, int format,
                      const int64_t *storage, uint64_t storage_n, void *data) {
  struct handle *h = make(TENSOR);
  h->dtype = dtype;
  h->format = format;
  h->offset = offset;
  h->data = data;
  h->count = n < DIMS ? (uint32_t)n : DIMS;
  for (uint32_t i = 0; i < h->count; i++) {
    h->dims[i] = dims[i];
    h->strides[i] = strides ? strides[i] : 0;
  }
  h->storage[0] = storage && storage_n ? storage[0] : 0;
  return h;
}

void *aclCreateScalar(void *value, int dtype) {
  struct handle *h = make(SCALAR);
  h->dtype = dtype;
  switch (dtype) {                /* aclDataType numbers */
    case 0: h->number = *(float *)value; break;
    case 11: h->number = *(double *)value; break;
    case 12: h->number = *(uint8_t *)value; break;
    case 3: h->number = *(int32_t *)value; break;
    case 9: h->number = (double)*(int64_t *)value; break;
    default: h->number = 0;
  }
  return h;
}

static void *list(uint32_t kind, const void *values, uint64_t n) {
  struct handle *h = make(kind);
  h->count = (uint32_t)n;
  h->data = malloc((n ? n : 1) * 8);
  if (!h->data) abort();
  for (uint64_t i = 0; i < n; i++) {
    if (kind == BOOL_ARRAY) h->ints[i] = ((const uint8_t *)values)[i];
    else if (kind == FLOAT_ARRAY) h->ints[i] = (int64_t)(((const float *)values)[i] * 1e6f);
    else h->ints[i] = ((const int64_t *)values)[i];
  }
  return h;
}

void *aclCreateIntArray(const int64_t *values, uint64_t n) { return list(INT_ARRAY, values, n); }
void *aclCreateBoolArray(const uint8_t *values, uint64_t n) { return list(BOOL_ARRAY, values, n); }
void *aclCreateFloatArray(const float *values, uint64_t n) { return list(FLOAT_ARRAY, values, n); }
void *aclCreateTensorList(void *const *values, uint64_t n) { return list(TENSOR_LIST, values, n); }
void *aclCreateScalarList(void *const *values, uint64_t n) { return list(SCALAR_LIST, values, n); }

static long drop_all(struct handle *h) {
  if (is_handle(h) && (h->kind == TENSOR_LIST || h->kind == SCALAR_LIST))
    for (uint32_t i = 0; i < h->count; i++) drop(h->list[i]);
  drop(h);
  return 0;
}

long aclDestroyTensor(void *h) { drop(h); return 0; }
long aclDestroyScalar(void *h) { drop(h); return 0; }
long aclDestroyIntArray(void *h) { drop(h); return 0; }
long aclDestroyBoolArray(void *h) { drop(h); return 0; }
long aclDestroyFloatArray(void *h) { drop(h); return 0; }
long aclDestroyTensorList(void *h) { return drop_all(h); }
long aclDestroyScalarList(void *h) { return drop_all(h); }
long aclDestroyAclOpExecutor(void *h) { (void)h; return 0; }

/* The sizes of an output that depends on data (nonzero, unique, ...): as large as torch_npu made room for. The caller frees them. */
long aclGetViewShape(const void *tensor, int64_t **dims, uint64_t *n) {
  const struct handle *h = tensor;
  if (!is_handle(h)) return 1;
  *n = h->count;
  *dims = malloc(sizeof(int64_t) * (h->count + 1));
  if (!*dims) return 1;
  memcpy(*dims, h->dims, sizeof(int64_t) * h->count);
  return 0;
}

/* --- signatures: function, tensors and arrays as numbers, each text written once -------------------------------------------------- */

struct text { char *at, *end; };

static void put(struct text *t, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  int n = vsnprintf(t->at, (size_t)(t->end - t->at), format, ap);
  va_end(ap);
  if (n > 0) t->at += n < t->end - t->at ? n : t->end - t->at - 1;
}

static void put_ints(struct text *t, const int64_t *values, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) put(t, i ? ",%ld" : "%ld", (long)values[i]);
}

static void put_handle(struct text *t, const struct handle *h) {
  switch (h->kind) {
    case TENSOR:
      put(t, "t%d:%d:", h->dtype, h->format);
      put_ints(t, h->dims, h->count);
      put(t, ":");
      put_ints(t, h->strides, h->count);
      break;
    case TENSOR_LIST: case SCALAR_LIST:
      put(t, "[");
      for (uint32_t i = 0; i < h->count; i++) {
        if (i) put(t, " ");
        if (is_handle(h->list[i])) put_handle(t, h->list[i]);
      }
      put(t, "]");
      break;
    case SCALAR: put(t, "s%d:%.9g", h->dtype, h->number); break;
    case INT_ARRAY: put(t, "i"); put_ints(t, h->ints, h->count); break;
    case BOOL_ARRAY: put(t, "b"); put_ints(t, h->ints, h->count); break;
    case FLOAT_ARRAY: put(t, "f%u", h->count); break;
    default: put(t, "?");
  }
}

static uint64_t mix(uint64_t h, uint64_t w) {
  h = (h ^ w) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

static uint64_t hash_handle(uint64_t x, const struct handle *h) {
  x = mix(x, (uint64_t)h->kind << 32 | h->count);
  switch (h->kind) {
    case TENSOR:
      x = mix(x, (uint64_t)(uint32_t)h->dtype << 32 | (uint32_t)h->format);
      for (uint32_t i = 0; i < h->count; i++) x = mix(mix(x, (uint64_t)h->dims[i]), (uint64_t)h->strides[i]);
      break;
    case TENSOR_LIST: case SCALAR_LIST:
      for (uint32_t i = 0; i < h->count; i++)
        if (is_handle(h->list[i])) x = hash_handle(x, h->list[i]);
      break;
    case SCALAR: x = mix(x, (uint64_t)h->dtype); break;   /* a value may change every step and is no new kernel */
    case INT_ARRAY: case BOOL_ARRAY:
      for (uint32_t i = 0; i < h->count; i++) x = mix(x, (uint64_t)h->ints[i]);
      break;
    default: break;
  }
  return x;
}

static struct { uint64_t hash; uint32_t number; } seen[1 << 16];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t look_up(uint64_t hash, uint32_t *slot) {
  uint32_t i = (uint32_t)hash & 0xffff;
  for (uint32_t k = 0; k < 256; k++, i = (i + 1) & 0xffff) {
    uint64_t h = __atomic_load_n(&seen[i].hash, __ATOMIC_ACQUIRE);
    if (h == hash) return seen[i].number;
    if (!h) break;
  }
  *slot = i;
  return 0;
}

static uint32_t remember(uint64_t hash, const char *text) {
  uint32_t slot = 0;
  pthread_mutex_lock(&lock);
  uint32_t number = look_up(hash, &slot);
  if (!number) {
    number = hollow_define('S', text);
    if (!seen[slot].hash) {
      seen[slot].number = number;
      __atomic_store_n(&seen[slot].hash, hash, __ATOMIC_RELEASE);
    }
  }
  pthread_mutex_unlock(&lock);
  return number;
}

/* An argument that is an address of something else: the text there when it is one (layouts such as BNSD are given so), read with care. */
static void put_text(struct text *t, const void *p) {
  char read[17] = {0};
  struct iovec to = {read, 16}, from = {(void *)p, 16};
  ssize_t n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
  size_t length = n > 0 ? strnlen(read, (size_t)n) : 0;
  int printable = length > 0 && length < 16;
  for (size_t i = 0; i < length; i++) printable &= read[i] > ' ' && read[i] < 127;
  if (printable) put(t, "'%s", read);
  else put(t, "p");
}

static uint32_t signature(const char *name, uint64_t hash, void *const *arguments, int n) {
  uint32_t slot;
  uint32_t number = look_up(hash, &slot);
  if (number) return number;
  size_t room = 1 << 20;
  char *buffer = malloc(room);
  if (!buffer) return 0;
  struct text t = {buffer, buffer + room};
  put(&t, "%s", name);
  for (int i = 0; i < n; i++) {
    put(&t, "\t");
    if (is_handle(arguments[i])) put_handle(&t, arguments[i]);
    else if (!arguments[i]) put(&t, "0");
    else if ((int64_t)arguments[i] < 0 ? (int64_t)arguments[i] > -65536 : (int64_t)arguments[i] < 65536) put(&t, "n%ld", (long)arguments[i]);
    else if ((uint64_t)arguments[i] >> 32 == 0) put(&t, "n%ld", (long)(int32_t)(intptr_t)arguments[i]);
    else put_text(&t, arguments[i]);
  }
  number = remember(hash, buffer);
  free(buffer);
  return number;
}

/* --- aclnn ------------------------------------------------------------------------------------------------------------------------- */

static void outputs_written(const char *name, void *const *arguments, int n) {
  int every = strstr(name, "Inplace") || strstr(name, "Foreach") || strstr(name, "Apply");
  for (int i = n - 1; i >= 0; i--) {
    const struct handle *h = arguments[i];
    if (!is_handle(h) || (h->kind != TENSOR && h->kind != TENSOR_LIST)) continue;
    if (h->kind == TENSOR) hollow_written(h->data);
    else
      for (uint32_t k = 0; k < h->count; k++)
        if (is_handle(h->list[k])) hollow_written(h->list[k]->data);
    if (!every) return;
  }
}

/* The first half of a call: pack the arguments up; `function` is a row of hollow_functions. */
long hollow_prepare(uint32_t function, void *first, va_list ap) {
  void *arguments[ARGUMENTS];
  uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  int n = 0;
  arguments[n++] = first;
  while (n < ARGUMENTS) {
    void *q = va_arg(ap, void *);
    uintptr_t a = (uintptr_t)arguments[n - 1], b = (uintptr_t)q;
    if (a > here && a < here + 65536 && b > here && b < here + 65536 && !(b & 7) && !(a & 7) && (a > b ? a - b : b - a) < 8192 &&
        *(void **)b == NULL) {
      n--;
      struct handle *e = make(EXECUTOR);
      uint64_t x = mix(0x51ed270b, function);
      for (int i = 0; i < n; i++) {
        if (is_handle(arguments[i])) x = hash_handle(x, arguments[i]);
        else x = mix(x, arguments[i] != NULL && (uint64_t)arguments[i] >> 16 == 0 ? 3 : 5);
      }
      e->launch.function = function;
      e->launch.signature = hollow_tracing() ? signature(hollow_functions[function], x ? x : 1, arguments, n) : 0;
      e->launch.op = *hollow_current_operator();
      outputs_written(hollow_functions[function], arguments, n);
      *(uint64_t *)a = 0;
      *(void **)b = e;
      return 0;
    }
    arguments[n++] = q;
  }
  return 0;
}

long hollow_launch(uint32_t function, void *executor, void *stream) {
  struct handle *e = executor;
  uint32_t *op = hollow_current_operator(), before = *op;
  if (is_handle(e) && e->kind == EXECUTOR) {
    *op = e->launch.op;
    hollow_record(HOLLOW_LAUNCH, e->launch.signature, hollow_stream_number(stream), 0, function, 0);
    drop(e);
  } else {
    hollow_record(HOLLOW_LAUNCH, hollow_named('S', hollow_functions[function]), hollow_stream_number(stream), 0, function, 0);
  }
  *op = before;
  return 0;
}

/* --- graph operators (910A, 310P and operators without an aclnn kernel) ------------------------------------------------------------ */

void *aclCreateTensorDesc(int dtype, int n, const int64_t *dims, int format) {
  struct handle *h = make(DESCRIPTION);
  h->dtype = dtype;
  h->format = format;
  h->count = n < 0 ? 0 : n < DIMS ? (uint32_t)n : DIMS;
  for (uint32_t i = 0; i < h->count; i++) h->dims[i] = dims[i];
  h->storage[0] = 0;
  return h;
}
void aclDestroyTensorDesc(void *h) { drop(h); }
long aclSetTensorFormat(void *d, int format) { if (is_handle(d)) ((struct handle *)d)->storage[0] = format + 1; return 0; }
long aclSetTensorShape(void *d, int n, const int64_t *dims) { (void)d; (void)n; (void)dims; return 0; }
int aclGetTensorDescType(const void *d) { return is_handle(d) ? ((const struct handle *)d)->dtype : -1; }
int aclGetTensorDescFormat(const void *d) { return is_handle(d) ? ((const struct handle *)d)->format : -1; }
size_t aclGetTensorDescNumDims(const void *d) { return is_handle(d) ? ((const struct handle *)d)->count : 0; }
long aclGetTensorDescDimV2(const void *d, size_t i, int64_t *size) {
  if (!is_handle(d) || i >= ((const struct handle *)d)->count) return 1;
  *size = ((const struct handle *)d)->dims[i];
  return 0;
}
void *aclCreateDataBuffer(void *data, size_t size) {
  struct handle *h = make(BUFFER);
  h->data = data;
  h->offset = (int64_t)size;
  return h;
}
long aclDestroyDataBuffer(void *h) { drop(h); return 0; }
void *aclopCreateAttr(void) { return make(ATTRIBUTES); }
void aclopDestroyAttr(void *h) { drop(h); }

static void put_descriptions(struct text *t, uint64_t *hash, int n, void *const *descriptions) {
  for (int i = 0; i < n; i++) {
    const struct handle *d = descriptions[i];
    if (!is_handle(d)) continue;
    int64_t format = d->storage[0] ? d->storage[0] - 1 : d->format;
    put(t, "\tt%d:%d:", d->dtype, (int)format);
    put_ints(t, d->dims, d->count);
    put(t, ":");
    *hash = mix(mix(*hash, (uint64_t)d->dtype << 32 | (uint64_t)format), d->count);
    for (uint32_t k = 0; k < d->count; k++) *hash = mix(*hash, (uint64_t)d->dims[k]);
  }
}

long aclopCompileAndExecute(const char *type, int in, void *const *in_descriptions, void *const *in_buffers, int out, void *const *out_descriptions,
                            void *const *out_buffers, const void *attributes, int engine, int flag, const char *path, void *stream) {
  (void)in_buffers; (void)attributes; (void)engine; (void)flag; (void)path;
  for (int i = 0; i < out; i++)
    if (is_handle(out_buffers[i])) hollow_written(((struct handle *)out_buffers[i])->data);
  if (!hollow_tracing()) return 0;
  static __thread char buffer[1 << 16];
  struct text t = {buffer, buffer + sizeof buffer};
  uint64_t hash = 77;
  for (const char *c = type; *c; c++) hash = mix(hash, (uint64_t)*c);
  put(&t, "aclop:%s", type);
  put_descriptions(&t, &hash, in, in_descriptions);
  put(&t, "\t>");
  hash = mix(hash, 99);
  put_descriptions(&t, &hash, out, out_descriptions);
  uint32_t slot, number = look_up(hash ? hash : 1, &slot);
  if (!number) number = remember(hash ? hash : 1, buffer);
  hollow_record(HOLLOW_LAUNCH, number, hollow_stream_number(stream), 0, 0, 0);
  return 0;
}

long aclopCompileAndExecuteV2(const char *type, int in, void **in_descriptions, void **in_buffers, int out, void **out_descriptions,
                              void **out_buffers, void *attributes, int engine, int flag, const char *path, void *stream) {
  return aclopCompileAndExecute(type, in, in_descriptions, in_buffers, out, out_descriptions, out_buffers, attributes, engine, flag, path, stream);
}
