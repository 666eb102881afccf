/* Processes that came to us because the child that had started them ended: whose job they are. */
#ifndef ORPHANS_H
#define ORPHANS_H

#include <stdint.h>
#include <sys/types.h>

/* From the first job on: those that are there already are nobody's. */
void orphans_watch(void);
/* Our child `pid` has been reaped, and `job` is the one that it led, or 0: what it left is that job's, or whose `pid`
   itself was. */
void orphans_of(pid_t pid, uint32_t job);
/* Kills what a job that has ended left, with all that this started. */
void orphans_kill(uint32_t job);

#endif
