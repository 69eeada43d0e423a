"""The life of a gang in `berth serve`: no member is bound before all of its minimum can be.

1. *Filter* (gang_scheduler.py). The first filter request about a member asks the admission queue (gang_admission.py)
   whether the gang may be planned now: whether its pods exist, whether it comes before others, and whether there are
   bind slots for its minimum. If so, GangPlanning asks the planner (`extender.gangs`) for a node and devices of every
   member, on one snapshot, and GangPlans holds all these devices in one step. Each member's filter request then gets
   exactly its planned node. A gang without a plan waits with a reason.
2. *Bind* (gang_barrier.py). The binds of the members stop twice: until the binds of the minimum came, and until all of
   these have written their claims. Then the gang is committed, and the Bindings are sent. A failure before that ends
   the plan, undoes all writes and fails all of its binds; a failure after it concerns one member.
3. *Meanwhile*. GangMonitor applies events of members, and has the table of what is done when a timer is due.
   BoundMembers reads which members run, where no claim shows it. GangHints searches changed nodes for room for gangs
   that wait. GangCollecting keeps the freed devices of one domain for one gang, if the policy allows it.

gang_state.py has the table of all states and events. Its two records, WaitingGang and FormingGang, are kept by the
admission queue. Nothing here but the barrier and the background tasks awaits. Each module is a face by itself.
"""
