//! Slow steps of the group's task: their decisions take effect later, and until then the task takes
//! no input.

use crate::rng::Rng;
use crate::scenario::{Leftovers, Profile, Scenario};
use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::request::Stepped;
use crate::world::event::{Event, ReplicaIndex};

impl Scenario {
    /// In a tenth of the scenarios in which parts of Lockstep fail, the leader's steps take up to
    /// two seconds. Nothing else is drawn from `rng`.
    pub(crate) fn choose_slow(&mut self, rng: &mut Rng) {
        let may = self.profile != Profile::Clean && self.leftovers != Some(Leftovers::WorkerRestart);
        self.slow_steps = rng.below(10) == 0 && may;
    }
}

impl World {
    /// Carries out what a step has decided, now or when the step is over.
    pub(crate) fn stepped(&mut self, replica: ReplicaIndex, stepped: Stepped) {
        let takes = self.step_takes();
        let life = self.replicas[replica].life;
        match &mut self.replicas[replica].leader {
            Some(leader) if takes > 0 => leader.is_stepping = true,
            _ => return self.carry_out(replica, stepped),
        }
        let stepped = Box::new(stepped);
        let event = Event::GroupStepped {
            replica,
            life,
            stepped,
        };
        self.queue.push(self.now + takes, event);
    }

    fn step_takes(&mut self) -> Time {
        if !self.scenario.slow_steps {
            return 0;
        }
        // Most take milliseconds. Some are those of a large group on a busy machine.
        let most = if self.rng.percent(10) { 2 * SEC } else { 50 * MS };
        self.rng.span(MS, most)
    }

    /// A slow step is over.
    pub(crate) fn group_stepped(&mut self, replica: ReplicaIndex, stepped: Stepped) {
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        leader.is_stepping = false;
        self.carry_out(replica, stepped);
        self.hub_flush(replica);
        // Something may have happened in the meantime.
        self.reports_changed(replica);
    }

    fn carry_out(&mut self, replica: ReplicaIndex, stepped: Stepped) {
        let leader = self.replicas[replica].leader.as_ref();
        let group = leader.and_then(|leader| leader.group.as_ref());
        let Some(group) = group.filter(|group| group.uid == stepped.group) else {
            return;
        };
        if let Some(published) = stepped.published {
            group.link.publish(published);
        }
        if let Some(status) = stepped.status {
            self.group_writes(replica, &stepped.known, &status);
        }
        for request in stepped.pods {
            self.send_pod_request(replica, &stepped.group, request);
        }
    }
}
