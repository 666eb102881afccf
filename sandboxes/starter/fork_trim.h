/* Reduce what each fork of an OCI runtime that is loaded once has to copy. Only in the library. */
#ifndef FORK_TRIM_H
#define FORK_TRIM_H

/* Exclude loaded libraries that the program does not link directly from all forks, because the cost of a fork and of an
   exit grows with the mapped memory. Later lookups of users and time load their libraries again, and keep them. */
void trim_forks(void);

/* In a fork: exit without the destructors of libraries, some of which are excluded. */
void exit_without_destructors(void);

#endif
