/* Reap ended children, and as the init process also orphans. */
#ifndef REAP_H
#define REAP_H

void reap_children(void);

#endif
