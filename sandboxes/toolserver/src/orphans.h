/* Orphans: processes that became children of the server because their parent ended, and the jobs that they belong to.
   */
#ifndef ORPHANS_H
#define ORPHANS_H

#include <stdint.h>
#include <sys/types.h>

/* Start to track orphans, at the first job. Present ones belong to no job. */
void orphans_watch(void);
/* Child `pid` was reaped. `job`: the job whose shell it was, or 0. Its orphaned children belong to that job, or to that
   of the orphan `pid`. */
void orphans_of(pid_t pid, uint32_t job);
/* Kill the orphans of an ended job and their descendants. */
void orphans_kill(uint32_t job);

#endif
