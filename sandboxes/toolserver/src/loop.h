/* The one epoll loop. Each event is handled alone, so that a handler may free any source. */
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
/* Stops watching and closes the descriptor. */
void loop_close(struct source *source);
/* Monotonic time in microseconds. */
uint64_t loop_now(void);
/* Waits until `deadline` at most (0: for ever) and handles one event. */
void loop_step(uint64_t deadline);

#endif
