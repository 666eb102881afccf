/* The epoll loop. It fetches one event at a time, so that a handler may free any source. */
#ifndef LOOP_H
#define LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct source {
    int fd;
    void (*ready)(struct source *source, uint32_t events);
};

bool loop_init(void);
bool loop_add(struct source *source, uint32_t events);
void loop_change(struct source *source, uint32_t events);
/* Stop watching and close the descriptor. */
void loop_close(struct source *source);
/* Return monotonic time in microseconds. */
uint64_t loop_now(void);
/* Set `now`. Return the microseconds since the last look for which this process did not run although a deadline was
 * pending: a standstill of the sandbox. */
uint64_t loop_lost(uint64_t *now);

/* Wait until `deadline` at most (0: no limit) and handle one event. */
void loop_step(uint64_t deadline);

#endif
