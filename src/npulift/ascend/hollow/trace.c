/* See trace.h. */
#define _GNU_SOURCE
#include "trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const uint64_t ROOM = 1ull << 34;          /* address space of each table; the file is sparse, so only what is written takes room */
static struct hollow_record *records;
static struct hollow_operator *operators;
static uint64_t record_count, operator_count, dropped;
static int definitions = -1, record_file = -1, operator_file = -1;
static uint32_t definition_count, thread_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define FAST __attribute__((tls_model("initial-exec")))
static __thread uint32_t thread_number FAST, current_operator FAST;
static __thread int paused FAST;
__attribute__((weak)) int hollow_device(void);

uint64_t hollow_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint32_t hollow_thread(void) {
  if (!thread_number) thread_number = __atomic_add_fetch(&thread_count, 1, __ATOMIC_RELAXED);
  return thread_number;
}

uint32_t *hollow_current_operator(void) { return &current_operator; }
void hollow_pause(int on) { paused += on ? 1 : -1; }
int hollow_tracing(void) { return records != NULL && !paused; }

static void *map(const char *folder, const char *name, int *file) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  *file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (*file < 0 || ftruncate(*file, (off_t)ROOM)) return NULL;
  void *p = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *file, 0);
  return p == MAP_FAILED ? NULL : p;
}

static void in_child(void) {                      /* a forked child (say a loader of data) is no part of the trace */
  records = NULL;
  operators = NULL;
  definitions = -1;
}

void hollow_trace_open(const char *folder) {
  static int once;
  char path[4096];
  if (records || !folder || !*folder) return;
  snprintf(path, sizeof path, "%s/definitions.txt", folder);
  definitions = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  operators = map(folder, "operators.bin", &operator_file);
  void *r = map(folder, "records.bin", &record_file);
  if (definitions < 0 || !operators || !r) {
    fprintf(stderr, "npulift: the trace cannot be written to %s\n", folder);
    operators = NULL;
    return;
  }
  if (!once++) pthread_atfork(NULL, NULL, in_child);
  records = r;
}

void hollow_trace_close(void) {
  if (!records) return;
  struct hollow_record *r = records;
  struct hollow_operator *o = operators;
  records = NULL;
  operators = NULL;
  usleep(1000);                                   /* a record that another thread is writing */
  munmap(r, ROOM);
  munmap(o, ROOM);
  if (ftruncate(record_file, (off_t)(record_count * sizeof *r)) || ftruncate(operator_file, (off_t)(operator_count * sizeof *o))) dropped++;
  close(record_file);
  close(operator_file);
}

void hollow_record(uint32_t kind, uint32_t signature, int32_t stream, uint64_t bytes, uint64_t detail, uint64_t duration_ns) {
  struct hollow_record *table = records;
  if (!table || paused) return;
  uint64_t row = __atomic_fetch_add(&record_count, 1, __ATOMIC_RELAXED);
  if ((row + 1) * sizeof *table > ROOM) { dropped++; return; }
  struct hollow_record *r = table + row;
  r->time_ns = hollow_now();
  r->signature = signature;
  r->op = current_operator;
  r->thread = hollow_thread();
  r->stream = stream;
  r->device = hollow_device ? hollow_device() : 0;
  r->bytes = bytes;
  r->detail = detail;
  r->duration_ns = duration_ns;
  r->kind = kind;
}

uint32_t hollow_add_operator(const struct hollow_operator *op) {
  struct hollow_operator *table = operators;
  if (!table || paused) return 0;
  uint64_t row = __atomic_fetch_add(&operator_count, 1, __ATOMIC_RELAXED);
  if (row >= 0xfffffff0u || (row + 1) * sizeof *table > ROOM) return 0;
  table[row] = *op;
  return (uint32_t)row + 1;
}

struct hollow_operator *hollow_operator_row(uint32_t one_based) {
  struct hollow_operator *table = operators;
  return table && one_based ? table + one_based - 1 : NULL;
}

static uint32_t define(char tag, const char *text) {
  char head[24];
  uint32_t number = ++definition_count;
  int n = snprintf(head, sizeof head, "%c\t%u\t", tag, number);
  size_t length = strlen(text);
  char *line = malloc((size_t)n + length + 2);
  if (!line) return 0;
  memcpy(line, head, (size_t)n);
  for (size_t i = 0; i < length; i++) line[(size_t)n + i] = text[i] == '\n' ? ' ' : text[i];
  line[(size_t)n + length] = '\n';
  if (definitions >= 0 && write(definitions, line, (size_t)n + length + 1) < 0) dropped++;
  free(line);
  return number;
}

uint32_t hollow_define(char tag, const char *text) {
  pthread_mutex_lock(&lock);
  uint32_t number = define(tag, text);
  pthread_mutex_unlock(&lock);
  return number;
}

struct known { char tag; char *text; uint32_t number; struct known *next; };
static struct known *table[4096];

uint32_t hollow_named(char tag, const char *text) {
  uint32_t h = (uint32_t)tag;
  for (const char *c = text; *c; c++) h = (h ^ (unsigned char)*c) * 16777619u;
  pthread_mutex_lock(&lock);
  struct known **slot = &table[h & 4095];
  for (struct known *k = *slot; k; k = k->next)
    if (k->tag == tag && !strcmp(k->text, text)) {
      pthread_mutex_unlock(&lock);
      return k->number;
    }
  struct known *k = malloc(sizeof *k);
  uint32_t number = 0;
  if (k) {
    number = define(tag, text);
    *k = (struct known){tag, strdup(text), number, *slot};
    *slot = k;
  }
  pthread_mutex_unlock(&lock);
  return number;
}

__attribute__((constructor)) static void begin(void) { hollow_trace_open(getenv("NPULIFT_HOLLOW_TRACE")); }
