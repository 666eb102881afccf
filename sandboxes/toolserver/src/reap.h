/* The dead: our own children, and as the first process whoever was orphaned. */
#ifndef REAP_H
#define REAP_H

void reap_children(void);

#endif
