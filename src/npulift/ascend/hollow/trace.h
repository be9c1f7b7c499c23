/* The trace: one fixed-size record an event in a sparse file that is mapped into memory; names, signatures and locations as text lines beside it.
 * Everything here may be called from any thread. Without a trace folder every call is a no-op. */
#ifndef HOLLOW_TRACE_H
#define HOLLOW_TRACE_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hollow_kind {
  HOLLOW_LAUNCH = 1, HOLLOW_COPY = 2, HOLLOW_EVENT_RECORD = 3, HOLLOW_EVENT_WAIT = 4, HOLLOW_SYNC = 5, HOLLOW_COLLECTIVE = 6,
  HOLLOW_MALLOC = 7, HOLLOW_FREE = 8, HOLLOW_MEMSET = 9, HOLLOW_FALLBACK = 10, HOLLOW_REFUSED = 11, HOLLOW_READ = 12,
  HOLLOW_ALLOCATED = 13, HOLLOW_RELEASED = 14, HOLLOW_OUT_OF_MEMORY = 15
};

struct hollow_record {      /* 64 bytes, little endian */
  uint64_t time_ns;         /* CLOCK_MONOTONIC */
  uint32_t kind;            /* enum hollow_kind */
  uint32_t signature;       /* line 'S' of definitions.txt */
  uint32_t op;              /* 1 + row of operators.bin, 0 when none caused it */
  uint32_t thread;          /* 1 for the first thread that recorded, ... */
  int32_t stream;           /* number of the stream, 0 the default */
  int32_t device;
  uint64_t bytes;           /* carried by a copy or a collective, asked of the allocator */
  uint64_t detail;          /* copy: aclrtMemcpyKind | 256 when synchronous; collective: ranks; event: its number; memory: address */
  uint64_t duration_ns;     /* fallbacks: time on the host's CPU */
  uint64_t reserved;
};

struct hollow_operator {    /* 64 bytes */
  uint64_t start_ns, end_ns;
  int64_t sequence;         /* autograd's sequence number, -1 when none */
  uint32_t name;            /* line 'N' */
  uint32_t location;        /* line 'L' */
  uint32_t module;          /* line 'M' */
  uint32_t parent;          /* backward: 1 + row of the forward operator; 0 when none */
  uint32_t phase;           /* 0 forward, 1 backward, 2 optimizer */
  uint32_t thread;
  uint32_t node;            /* backward: line 'N' with the name of the autograd node */
  uint32_t step;            /* how many optimizer steps were finished before */
};

int hollow_tracing(void);
void hollow_trace_open(const char *folder);
void hollow_trace_close(void);
void hollow_pause(int on);                       /* nested; nothing is recorded while the count is above zero on this thread */
uint64_t hollow_now(void);
uint32_t hollow_thread(void);
uint32_t *hollow_current_operator(void);         /* this thread's slot */
void hollow_record(uint32_t kind, uint32_t signature, int32_t stream, uint64_t bytes, uint64_t detail, uint64_t duration_ns);
uint32_t hollow_add_operator(const struct hollow_operator *op);   /* returns 1 + row, 0 when full or not tracing */
struct hollow_operator *hollow_operator_row(uint32_t one_based);
uint32_t hollow_define(char tag, const char *text);               /* a new line; returns its number, from 1 within all tags */
uint32_t hollow_named(char tag, const char *text);                /* the line with this text, made when it is new */

#ifdef __cplusplus
}
#endif
#endif
