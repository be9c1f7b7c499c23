/* Collectives of one process that stands for all ranks: written down with their bytes, and carried out as if every rank held this rank's data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

struct communicator { uint32_t magic, ranks, rank, number; };
enum { MAGIC = 0x4cc1 };
static uint32_t count;
extern int32_t hollow_stream_number(const void *stream);
extern int hollow_is_fake(void);
extern void hollow_written(const void *address);

static size_t size_of(int dtype) {     /* HcclDataType numbers */
  static const unsigned char bytes[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2, 16, 4, 1, 1, 1, 1};
  return dtype >= 0 && dtype < (int)sizeof bytes ? bytes[dtype] : 4;
}

static int make(uint32_t ranks, uint32_t rank, void **comm) {
  struct communicator *c = malloc(sizeof *c);
  if (!c) return 1;
  *c = (struct communicator){MAGIC, ranks, rank, __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED)};
  *comm = c;
  return 0;
}
static uint32_t ranks_of(void *comm) { struct communicator *c = comm; return c && c->magic == MAGIC ? c->ranks : 1; }

int HcclGetRootInfo(void *info) { memset(info, 0, 16); return 0; }
int HcclGetRootInfoScalable(void *info) { memset(info, 0, 16); return 0; }
int HcclCommInitRootInfo(uint32_t ranks, const void *info, uint32_t rank, void **comm) { (void)info; return make(ranks, rank, comm); }
int HcclCommInitRootInfoConfig(uint32_t ranks, const void *info, uint32_t rank, const void *config, void **comm) { (void)info; (void)config; return make(ranks, rank, comm); }
int HcclCommInitRootInfoScalable(uint32_t ranks, uint32_t roots, const void *info, uint32_t rank, uint32_t extra, const void *config, void **comm) {
  (void)roots; (void)info; (void)extra; (void)config;
  return make(ranks, rank, comm);
}
int HcclCommInitClusterInfoConfig(const char *file, uint32_t rank, void *config, void **comm) { (void)file; (void)config; return make((uint32_t)atoi(getenv("WORLD_SIZE") ? getenv("WORLD_SIZE") : "1"), rank, comm); }
int HcclCommInitAll(uint32_t n, int32_t *devices, void **comms) {
  (void)devices;
  for (uint32_t i = 0; i < n; i++) make(n, i, &comms[i]);
  return 0;
}
int HcclCreateSubCommConfig(void **comm, uint32_t ranks, uint32_t *ids, uint64_t id, uint32_t rank, void *config, void **sub) {
  (void)comm; (void)ids; (void)id; (void)config;
  return make(ranks, rank, sub);
}
int HcclCommDestroy(void *comm) { free(comm); return 0; }
int HcclGetCommName(void *comm, char *name) { struct communicator *c = comm; sprintf(name, "hollow%u", c ? c->number : 0); return 0; }
int HcclGetCommAsyncError(void *comm, int *error) { (void)comm; *error = 0; return 0; }

static void record(const char *name, int dtype, uint64_t bytes, void *comm, void *stream) {
  if (!hollow_tracing()) return;
  char text[96];
  snprintf(text, sizeof text, "%s\th%d", name, dtype);
  hollow_record(HOLLOW_COLLECTIVE, hollow_named('S', text), hollow_stream_number(stream), bytes, ranks_of(comm), 0);
}

static float from_half(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  float f;
  if (exponent == 0) { f = (float)mantissa * 5.9604644775390625e-8f; return sign ? -f : f; }
  uint32_t bits = sign | (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) | mantissa << 13;
  memcpy(&f, &bits, 4);
  return f;
}
static uint16_t to_half(float f) {
  uint32_t x;
  memcpy(&x, &f, 4);
  uint16_t sign = (uint16_t)((x >> 16) & 0x8000);
  int32_t e = (int32_t)((x >> 23) & 255) - 112;
  uint32_t m = x & 0x7fffff;
  if (((x >> 23) & 255) == 255) return (uint16_t)(sign | 0x7c00 | (m ? 0x200 : 0));
  if (e >= 31) return (uint16_t)(sign | 0x7c00);
  if (e <= 0) {
    if (e < -10) return sign;
    m |= 0x800000;
    uint32_t shift = (uint32_t)(14 - e), half = m >> shift, rest = m & ((1u << shift) - 1), middle = 1u << (shift - 1);
    return (uint16_t)(sign | (half + (rest > middle || (rest == middle && (half & 1)))));
  }
  uint32_t half = ((uint32_t)e << 10) | m >> 13, rest = m & 0x1fff;
  return (uint16_t)(sign | (half + (rest > 0x1000 || (rest == 0x1000 && (half & 1)))));
}

/* op 0 is a sum: the same value from every rank, so `ranks` times it. Products, maxima and minima of equal values: only the product differs. */
static void reduce(void *to, const void *from, uint64_t n, int dtype, int op, uint32_t ranks) {
  if (hollow_is_fake()) { hollow_written(to); return; }
  if (op != 0 || ranks == 1) { if (to != from) memmove(to, from, n * size_of(dtype)); return; }
  for (uint64_t i = 0; i < n; i++)
    switch (dtype) {
      case 0: case 7: ((uint8_t *)to)[i] = (uint8_t)(((const uint8_t *)from)[i] * ranks); break;
      case 1: ((uint16_t *)to)[i] = (uint16_t)(((const uint16_t *)from)[i] * ranks); break;
      case 2: case 9: ((uint32_t *)to)[i] = ((const uint32_t *)from)[i] * ranks; break;
      case 3: ((uint16_t *)to)[i] = to_half(from_half(((const uint16_t *)from)[i]) * (float)ranks); break;
      case 4: ((float *)to)[i] = ((const float *)from)[i] * (float)ranks; break;
      case 5: case 6: ((uint64_t *)to)[i] = ((const uint64_t *)from)[i] * ranks; break;
      case 10: ((double *)to)[i] = ((const double *)from)[i] * ranks; break;
      case 11: {
        uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
        float f;
        memcpy(&f, &bits, 4);
        f *= (float)ranks;
        memcpy(&bits, &f, 4);
        ((uint16_t *)to)[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
        break;
      }
      default: memmove((char *)to + i * size_of(dtype), (const char *)from + i * size_of(dtype), size_of(dtype));
    }
}
static void move(void *to, const void *from, size_t n) {
  if (hollow_is_fake()) hollow_written(to);
  else if (to != from && n) memmove(to, from, n);
}

int HcclAllReduce(void *from, void *to, uint64_t n, int dtype, int op, void *comm, void *stream) {
  record("HcclAllReduce", dtype, n * size_of(dtype), comm, stream);
  reduce(to, from, n, dtype, op, ranks_of(comm));
  return 0;
}
int HcclReduce(void *from, void *to, uint64_t n, int dtype, int op, uint32_t root, void *comm, void *stream) {
  (void)root;
  record("HcclReduce", dtype, n * size_of(dtype), comm, stream);
  reduce(to, from, n, dtype, op, ranks_of(comm));
  return 0;
}
int HcclReduceScatter(void *from, void *to, uint64_t n, int dtype, int op, void *comm, void *stream) {
  struct communicator *c = comm;
  record("HcclReduceScatter", dtype, n * size_of(dtype) * ranks_of(comm), comm, stream);
  reduce(to, (char *)from + (c ? c->rank : 0) * n * size_of(dtype), n, dtype, op, ranks_of(comm));
  return 0;
}
int HcclReduceScatterV(void *from, const void *counts, const void *offsets, void *to, uint64_t n, int dtype, int op, void *comm, void *stream) {
  (void)counts; (void)offsets;
  record("HcclReduceScatterV", dtype, n * size_of(dtype) * ranks_of(comm), comm, stream);
  reduce(to, from, n, dtype, op, ranks_of(comm));
  return 0;
}
int HcclAllGather(void *from, void *to, uint64_t n, int dtype, void *comm, void *stream) {
  size_t bytes = n * size_of(dtype);
  record("HcclAllGather", dtype, bytes * ranks_of(comm), comm, stream);
  for (uint32_t r = 0; r < ranks_of(comm); r++) move((char *)to + r * bytes, from, bytes);
  return 0;
}
int HcclAllGatherV(void *from, uint64_t n, void *to, const void *counts, const void *offsets, int dtype, void *comm, void *stream) {
  (void)counts; (void)offsets;
  record("HcclAllGatherV", dtype, n * size_of(dtype) * ranks_of(comm), comm, stream);
  move(to, from, n * size_of(dtype));
  return 0;
}
int HcclBroadcast(void *data, uint64_t n, int dtype, uint32_t root, void *comm, void *stream) {
  (void)data; (void)root;
  record("HcclBroadcast", dtype, n * size_of(dtype), comm, stream);
  return 0;
}
int HcclScatter(void *from, void *to, uint64_t n, int dtype, uint32_t root, void *comm, void *stream) {
  (void)root;
  record("HcclScatter", dtype, n * size_of(dtype) * ranks_of(comm), comm, stream);
  move(to, from, n * size_of(dtype));
  return 0;
}
int HcclAlltoAll(const void *from, uint64_t n, int dtype, void *to, uint64_t m, int dtype2, void *comm, void *stream) {
  (void)m; (void)dtype2;
  record("HcclAlltoAll", dtype, n * size_of(dtype) * ranks_of(comm), comm, stream);
  move(to, from, n * size_of(dtype) * ranks_of(comm));
  return 0;
}
int HcclAlltoAllV(const void *from, const uint64_t *counts, const uint64_t *offsets, int dtype, void *to, const uint64_t *counts2, const uint64_t *offsets2, int dtype2,
                  void *comm, void *stream) {
  (void)dtype2;
  uint64_t bytes = 0;
  for (uint32_t r = 0; r < ranks_of(comm); r++) {
    bytes += counts[r] * size_of(dtype);
    uint64_t n = counts[r] < counts2[r] ? counts[r] : counts2[r];
    move((char *)to + offsets2[r] * size_of(dtype), (const char *)from + offsets[r] * size_of(dtype), n * size_of(dtype));
  }
  record("HcclAlltoAllV", dtype, bytes, comm, stream);
  return 0;
}
int HcclSend(void *data, uint64_t n, int dtype, uint32_t peer, void *comm, void *stream) {
  (void)data; (void)peer;
  record("HcclSend", dtype, n * size_of(dtype), comm, stream);
  return 0;
}
int HcclRecv(void *data, uint64_t n, int dtype, uint32_t peer, void *comm, void *stream) {
  (void)data; (void)peer;
  record("HcclRecv", dtype, n * size_of(dtype), comm, stream);
  return 0;
}
int HcclBarrier(void *comm, void *stream) { record("HcclBarrier", 0, 0, comm, stream); return 0; }
