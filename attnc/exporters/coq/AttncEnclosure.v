(* AttncEnclosure.v: interval arithmetic evaluates the bound of AttncRounding.v, cell by cell, by computation.

   Stored numbers are rationals. A head is [checked] on [a, b] if the evaluation ends with true. *)
From Coq Require Import QArith Qreals Reals ZArith List Lra Lia Bool.
From Interval Require Import Xreal Basic Interval Float_full Specific_bigint Specific_ops Sig.
Require Import AttncRounding.
Import ListNotations.
Open Scope R_scope.

Module F := SpecificFloat BigIntRadix2.
Module I := FloatIntervalFull F.

Lemma Some_inj : forall (A : Type) (a b : A), Some a = Some b -> a = b.
Proof. intros A a b H; injection H; auto. Qed.

Lemma Forall2_length : forall (A B : Type) (P : A -> B -> Prop) l m, Forall2 P l m -> length l = length m.
Proof. intros A B P l m H; induction H; simpl; congruence. Qed.

(** Enclosures *)

Definition encl (i : I.type) (x : R) := contains (I.convert i) (Xreal x).

Lemma encl_nan : forall i x, contains (I.convert i) Xnan -> encl i x.
Proof. intros i x; unfold encl, contains; destruct (I.convert i); [trivial|contradiction]. Qed.

Section Precision.
Variable prec : F.precision.

Definition add := I.add prec.
Definition sub := I.sub prec.
Definition mul := I.mul prec.
Definition div := I.div prec.
Definition ofZ := I.fromZ prec.
Definition ofQ (q : Q) := div (ofZ (Qnum q)) (ofZ (Zpos (Qden q))).

Lemma encl_add : forall i j x y, encl i x -> encl j y -> encl (add i j) (x + y).
Proof. intros i j x y; apply (I.add_correct prec i j (Xreal x) (Xreal y)). Qed.
Lemma encl_sub : forall i j x y, encl i x -> encl j y -> encl (sub i j) (x - y).
Proof. intros i j x y; apply (I.sub_correct prec i j (Xreal x) (Xreal y)). Qed.
Lemma encl_mul : forall i j x y, encl i x -> encl j y -> encl (mul i j) (x * y).
Proof. intros i j x y; apply (I.mul_correct prec i j (Xreal x) (Xreal y)). Qed.
Lemma encl_abs : forall i x, encl i x -> encl (I.abs i) (Rabs x).
Proof. intros i x; apply (I.abs_correct i (Xreal x)). Qed.
Lemma encl_exp : forall i x, encl i x -> encl (I.exp prec i) (exp x).
Proof. intros i x; apply (I.exp_correct prec i (Xreal x)). Qed.
Lemma encl_ofZ : forall n, encl (ofZ n) (IZR n).
Proof. intros n; apply I.fromZ_correct. Qed.
Lemma encl_div : forall i j x y, encl i x -> encl j y -> encl (div i j) (x / y).
Proof.
  intros i j x y Hi Hj; assert (H := I.div_correct prec i j (Xreal x) (Xreal y) Hi Hj); simpl in H; unfold Xdiv' in H.
  destruct (is_zero y); [apply encl_nan, H|exact H].
Qed.
Lemma encl_ofQ : forall q, encl (ofQ q) (Q2R q).
Proof. intros q; apply encl_div; apply encl_ofZ. Qed.

Definition power (i : I.type) (n : nat) := I.power_int prec i (Z.of_nat n).
Lemma encl_power : forall i x n, encl i x -> encl (power i n) (x ^ n).
Proof.
  intros i x n H; assert (P := I.power_int_correct prec (Z.of_nat n) i (Xreal x) H).
  destruct n as [|n]; [exact P|].
  change (encl (power i (S n)) (x ^ Pos.to_nat (Pos.of_succ_nat n))) in P; rewrite SuccNat2Pos.id_succ in P; exact P.
Qed.

Definition at_most (i j : I.type) := I.subset i (I.lower_complement j).
Lemma at_most_le : forall i j x y, encl i x -> encl j y -> at_most i j = true -> x <= y.
Proof. intros i j x y Hi Hj H; apply (I.lower_complement_correct j y x Hj), (I.subset_correct _ _ _ Hi H). Qed.

Definition between (a b : Q) := I.meet (I.upper_extent (ofQ a)) (I.lower_extent (ofQ b)).
Lemma encl_between : forall a b x, Q2R a <= x <= Q2R b -> encl (between a b) x.
Proof.
  intros a b x [H1 H2]; apply I.meet_correct.
  - apply (I.upper_extent_correct _ x (Q2R a)); [apply encl_ofQ|exact H1].
  - apply (I.lower_extent_correct _ x (Q2R b)); [apply encl_ofQ|exact H2].
Qed.

Fixpoint covered (test : I.type -> bool) (depth : nat) (i : I.type) : bool :=
  if test i then true
  else match depth with
       | O => false
       | S n => let (l, r) := I.bisect i in if covered test n l then covered test n r else false
       end.

Lemma covered_ok : forall (P : R -> Prop) test, (forall i x, test i = true -> encl i x -> P x) ->
  forall depth i x, covered test depth i = true -> encl i x -> P x.
Proof.
  intros P test T depth; induction depth as [|n IH]; intros i x H X; simpl in H;
    (destruct (test i) eqn:Ti; [apply (T i x Ti X)|]); [discriminate|].
  assert (B := I.bisect_correct i (Xreal x) X); destruct (I.bisect i) as [l r]; simpl in B.
  destruct (covered test n l) eqn:L; [|discriminate]; destruct B as [B|B]; [apply (IH l x L B)|apply (IH r x H B)].
Qed.

(** The terms of the bound *)

Variables (u tau E : R) (iu itau iE : I.type).
Hypothesis Hu : encl iu u.
Hypothesis Htau : encl itau tau.
Hypothesis HE : encl iE E.

Definition i_unit (flag : bool) := if flag then ofZ 0 else iu.
Lemma encl_unit : forall flag, encl (i_unit flag) (unit_of u flag).
Proof. intros []; [apply encl_ofZ|exact Hu]. Qed.

Definition i_affine_error (sc br : bool) (k X Z err : I.type) :=
  let enter := mul (I.abs k) (add err itau) in
  let after := add (add enter (mul (i_unit sc) (add (I.abs (mul k X)) enter))) (mul (ofZ 2) itau) in
  add (add after (mul (i_unit br) (add (I.abs Z) after))) itau.

Ltac enclose := repeat first [assumption | apply encl_unit | apply encl_add | apply encl_sub | apply encl_mul | apply encl_div
  | apply encl_abs | apply encl_exp | apply encl_ofZ].

Lemma encl_affine_error : forall sc br k X Z err k' X' Z' err',
  encl k k' -> encl X X' -> encl Z Z' -> encl err err' ->
  encl (i_affine_error sc br k X Z err) (affine_error u tau sc br k' X' Z' err').
Proof. intros; unfold i_affine_error, affine_error; cbv zeta; enclose. Qed.

(* A key, its numbers enclosed *)
Record ikey := IKey { i_slope : I.type; i_intercept : I.type; i_own : I.type; i_constant : I.type;
                      i_scaling : bool; i_bare : bool }.
Definition same (i : ikey) (k : key) :=
  encl (i_slope i) (slope k) /\ encl (i_intercept i) (intercept k) /\ encl (i_own i) (own k) /\
  encl (i_constant i) (constant k) /\ i_scaling i = scaling k /\ i_bare i = bare k.

(* What is computed for one key on a cell: exp lead, swing, value, size *)
Record term := Term { i_power : I.type; i_swing : I.type; i_value : I.type; i_size : I.type }.

Fixpoint add_up {A : Type} (f : A -> I.type) (l : list A) : I.type :=
  match l with [] => ofZ 0 | x :: m => add (f x) (add_up f m) end.

Lemma encl_add_up : forall (A B : Type) (P : A -> B -> Prop) f g l m,
  Forall2 P l m -> (forall a b, P a b -> encl (f a) (g b)) -> encl (add_up f l) (sum g m).
Proof.
  intros A B P f g l m H F; induction H as [|a b l m H1 H2 IH]; simpl; [apply encl_ofZ|].
  apply encl_add; [apply F, H1|exact IH].
Qed.

Variables (sq bq : bool) (gain offset : R) (igain ioffset : I.type) (keys : list key) (ikeys : list ikey).
Hypothesis Hgain : encl igain gain.
Hypothesis Hoffset : encl ioffset offset.
Hypothesis Hkeys : Forall2 same ikeys keys.
(* [ref] is the reference of the bound, [pivot] the key whose exponential is 1 in what is evaluated: quotients are the same. *)
Variables (ref pivot : key) (iref ipivot : ikey) (top grown bound : R) (itop igrown ibound : I.type).
Hypothesis Href : same iref ref.
Hypothesis Hpivot : same ipivot pivot.
Hypothesis Htop : encl itop top.
Hypothesis Hgrown : encl igrown grown.
Hypothesis Hbound : encl ibound bound.

Definition half := div (ofZ 1) (ofZ 2).

(* exp, without bounds so small that adding them to 1 would take long: floats are exact sums of any length before they are rounded *)
Definition short_exp (i : I.type) : I.type :=
  if at_most (ofZ (-1000)) i then I.exp prec i
  else I.meet (I.upper_extent (ofZ 0))
         (I.lower_extent (I.exp prec (if at_most i (ofZ (-1000)) then ofZ (-1000) else i))).

Lemma encl_short_exp : forall i x, encl i x -> encl (short_exp i) (exp x).
Proof.
  intros i x H; unfold short_exp; destruct (at_most (ofZ (-1000)) i); [apply encl_exp, H|].
  apply I.meet_correct; [apply (I.upper_extent_correct _ (exp x) 0); [apply encl_ofZ|left; apply exp_pos]|].
  destruct (at_most i (ofZ (-1000))) eqn:L.
  - apply (I.lower_extent_correct _ (exp x) (exp (IZR (-1000)))); [apply encl_exp, encl_ofZ|].
    apply exp_le, (at_most_le _ _ _ _ H (encl_ofZ (-1000)) L).
  - apply (I.lower_extent_correct _ (exp x) (exp x)); [apply encl_exp, H|lra].
Qed.

(* The term of one key, or nothing if a condition of `checked` may fail *)
Definition i_term (s x err : I.type) (k : ikey) : option term :=
  let z := add (mul (i_slope k) x) (i_intercept k) in
  let eta := i_affine_error (i_scaling k) (i_bare k) (i_slope k) x z err in
  let ahead := add (mul (sub (i_slope k) (i_slope iref)) x) (sub (i_intercept k) (i_intercept iref)) in
  let from_pivot := add (mul (sub (i_slope k) (i_slope ipivot)) x) (sub (i_intercept k) (i_intercept ipivot)) in
  let moved := add (add eta (mul iu (add (add (add (I.abs ahead) eta) itop) (mul (ofZ 2) itau)))) (mul (ofZ 4) itau) in
  if at_most eta itop && at_most (add ahead eta) itop && at_most moved half then
    Some (Term (short_exp from_pivot)
            (add (mul (add moved (mul (ofZ 2) (mul moved moved))) (add (ofZ 1) iE)) iE)
            (add (mul (i_own k) s) (i_constant k))
            (add (I.abs (mul (i_own k) s)) (I.abs (i_constant k))))
  else None.

Fixpoint i_terms (s x err : I.type) (l : list ikey) : option (list term) :=
  match l with
  | [] => Some []
  | k :: m => match i_term s x err k, i_terms s x err m with Some t, Some r => Some (t :: r) | _, _ => None end
  end.

Definition i_count := ofZ (Z.of_nat (length ikeys)).
Definition i_owns := add_up (fun k => add (I.abs (i_own k)) (ofZ 1)) ikeys.

Definition cell_ok (s : I.type) : bool :=
  let x := add (mul igain s) ioffset in
  let err := i_affine_error sq bq igain s x (ofZ 0) in
  match i_terms s x err ikeys with
  | None => false
  | Some l =>
      let mass := add_up i_power l in
      let g := div (add_up (fun t => mul (i_power t) (i_value t)) l) mass in
      let lost := add (div (add_up (fun t => mul (i_power t) (i_swing t)) l) mass) (mul (mul (ofZ 12) itau) i_count) in
      let spread := div (add_up (fun t => mul (i_power t)
             (add (mul (i_swing t) (I.abs (sub (i_value t) g))) (mul igrown (mul (add (ofZ 1) (i_swing t)) (i_size t))))) l) mass in
      let sizes := add (add_up i_size l) i_owns in
      let under := mul (mul (add (mul (ofZ 24) i_count) (ofZ 448)) itau) sizes in
      at_most lost half && at_most (add (div spread (sub (ofZ 1) lost)) under) ibound
  end.

Section Cell.
Variables (s : R) (is : I.type).
Hypothesis Hs : encl is s.

Let query_ok : encl (add (mul igain is) ioffset) (query gain offset s).
Proof. unfold query; enclose. Qed.

Let err_ok : encl (i_affine_error sq bq igain is (add (mul igain is) ioffset) (ofZ 0)) (query_error u tau sq bq gain offset s).
Proof. apply encl_affine_error; try assumption; apply encl_ofZ. Qed.

Definition good (t : term) (k : key) :=
  encl (i_power t) (exp (lead gain offset s pivot k)) /\
  encl (i_swing t) (swing u tau E sq bq gain offset s ref top k) /\
  encl (i_value t) (value s k) /\ encl (i_size t) (size s k) /\
  checked u tau sq bq gain offset s ref top k.

Lemma encl_half : encl half (/ 2).
Proof. replace (/ 2) with (1 / 2) by field; apply encl_div; apply encl_ofZ. Qed.

Lemma term_good : forall k i t, same i k ->
  i_term is (add (mul igain is) ioffset) (i_affine_error sq bq igain is (add (mul igain is) ioffset) (ofZ 0)) i = Some t ->
  good t k.
Proof.
  intros k i t (S1 & S2 & S3 & S4 & S5 & S6); unfold i_term; cbv zeta.
  assert (R := Href); destruct R as (R1 & R2 & _); assert (P := Hpivot); destruct P as (P1 & P2 & _).
  set (x := add (mul igain is) ioffset) in *; assert (X := query_ok); assert (Er := err_ok); fold x in X, Er.
  set (err := i_affine_error sq bq igain is x (ofZ 0)) in *.
  set (eta := i_affine_error (i_scaling i) _ _ _ _ _).
  assert (Eta : encl eta (score_error u tau sq bq gain offset s k)).
  { unfold eta, score_error; rewrite S5, S6; apply encl_affine_error; try assumption; unfold score; enclose. }
  set (ahead := add (mul (sub (i_slope i) (i_slope iref)) x) _).
  assert (Ahead : encl ahead (lead gain offset s ref k)) by (unfold ahead, lead; enclose).
  set (moved := add (add eta _) _).
  assert (Moved : encl moved (shift u tau sq bq gain offset s ref top k)) by (unfold moved, shift; enclose).
  destruct (at_most eta itop && at_most (add ahead eta) itop && at_most moved half) eqn:C; [|discriminate].
  apply andb_true_iff in C; destruct C as [C C3]; apply andb_true_iff in C; destruct C as [C1 C2].
  intros Eq; apply Some_inj in Eq; subst t; unfold good; cbn [i_power i_swing i_value i_size].
  split; [apply encl_short_exp; unfold lead; enclose|]; split; [unfold swing; enclose|]; split; [unfold value; enclose|]; split; [unfold size; enclose|].
  unfold checked; repeat split.
  - apply (at_most_le _ _ _ _ Eta Htop C1).
  - apply (at_most_le _ _ _ _ (encl_add _ _ _ _ Ahead Eta) Htop C2).
  - apply (at_most_le _ _ _ _ Moved encl_half C3).
Qed.

Lemma terms_good : forall il kl l, Forall2 same il kl ->
  i_terms is (add (mul igain is) ioffset) (i_affine_error sq bq igain is (add (mul igain is) ioffset) (ofZ 0)) il = Some l ->
  Forall2 good l kl.
Proof.
  intros il kl l H; revert l; induction H as [|i k il kl H1 H2 IH]; intros l Eq; cbn [i_terms] in Eq.
  - apply Some_inj in Eq; subst l; constructor.
  - destruct (i_term _ _ _ i) as [t|] eqn:T; [|discriminate].
    destruct (i_terms _ _ _ il) as [r|] eqn:R; [|discriminate].
    apply Some_inj in Eq; subst l; constructor; [apply (term_good k i t H1 T)|apply IH; reflexivity].
Qed.

Let count_ok : encl i_count (INR (length keys)).
Proof.
  unfold i_count; rewrite INR_IZR_INZ, <- (Forall2_length _ _ _ _ _ Hkeys); apply encl_ofZ.
Qed.

Let owns_ok : encl i_owns (sum (fun k => Rabs (own k) + 1) keys).
Proof. apply (encl_add_up _ _ same _ _ _ _ Hkeys); intros i k (S1 & S2 & S3 & _); enclose. Qed.

Lemma repivot : forall phi : key -> R,
  sum (fun k => exp (lead gain offset s ref k) * phi k) keys / mass gain offset keys s ref
  = sum (fun k => exp (lead gain offset s pivot k) * phi k) keys / mass gain offset keys s pivot.
Proof.
  intros phi; unfold mass; set (c := exp (lead gain offset s ref pivot)); assert (C : c <> 0) by apply Rgt_not_eq, exp_pos.
  assert (X : forall k, exp (lead gain offset s ref k) = c * exp (lead gain offset s pivot k))
    by (intros k; unfold c; rewrite <- exp_plus; f_equal; unfold lead; ring).
  rewrite (sum_ext (fun k => exp (lead gain offset s ref k) * phi k)
             (fun k => c * (exp (lead gain offset s pivot k) * phi k))) by (intros k _; rewrite X; ring).
  rewrite (sum_ext (fun k => exp (lead gain offset s ref k)) (fun k => c * exp (lead gain offset s pivot k)))
    by (intros k _; apply X).
  rewrite !sum_scale; unfold Rdiv; rewrite Rinv_mult.
  replace (c * sum (fun k => exp (lead gain offset s pivot k) * phi k) keys *
           (/ c * / sum (fun k => exp (lead gain offset s pivot k)) keys))
    with (c * / c * (sum (fun k => exp (lead gain offset s pivot k) * phi k) keys *
           / sum (fun k => exp (lead gain offset s pivot k)) keys)) by ring.
  rewrite Rinv_r by exact C; ring.
Qed.

Theorem cell_good : cell_ok is = true ->
  let lost := moving u tau E sq bq gain offset keys s ref top + 12 * tau * INR (length keys) in
  Forall (checked u tau sq bq gain offset s ref top) keys /\ lost <= / 2 /\
  spread u tau E sq bq gain offset keys s ref top grown / (1 - lost) + underflow tau keys s <= bound.
Proof.
  unfold cell_ok; cbv zeta.
  destruct (i_terms _ _ _ ikeys) as [l|] eqn:T; [|discriminate].
  apply (terms_good _ _ _ Hkeys) in T; intros H; apply andb_true_iff in H; destruct H as [H1 H2].
  split; [clear - T; induction T as [|t k l m G _ IH]; constructor; [apply G|exact IH]|].
  assert (M : encl (add_up i_power l) (mass gain offset keys s pivot))
    by (apply (encl_add_up _ _ good _ _ _ _ T); intros t k G; apply G).
  assert (N : encl (add_up (fun t => mul (i_power t) (i_value t)) l) (numerator gain offset keys s pivot))
    by (apply (encl_add_up _ _ good _ _ _ _ T); intros t k (G1 & G2 & G3 & G4 & _); enclose).
  assert (L : encl (add (div (add_up (fun t => mul (i_power t) (i_swing t)) l) (add_up i_power l)) (mul (mul (ofZ 12) itau) i_count))
                (moving u tau E sq bq gain offset keys s ref top + 12 * tau * INR (length keys))).
  { unfold moving; rewrite repivot; enclose.
    apply (encl_add_up _ _ good _ _ _ _ T); intros t k (G1 & G2 & _); enclose. }
  set (lost := add _ (mul (mul (ofZ 12) itau) i_count)) in *.
  split; [apply (at_most_le _ _ _ _ L encl_half H1)|].
  refine (at_most_le _ _ _ _ _ Hbound H2); unfold spread, underflow, numerator; rewrite !repivot; fold (numerator gain offset keys s pivot);
    enclose; try exact count_ok.
  - apply (encl_add_up _ _ good _ _ _ _ T); intros t k (G1 & G2 & G3 & G4 & _); enclose.
  - unfold sizes; replace (sum (fun k => size s k + Rabs (own k) + 1) keys)
      with (sum (size s) keys + sum (fun k => Rabs (own k) + 1) keys)
      by (rewrite <- sum_add; apply sum_ext; intros; ring).
    apply encl_add; [|exact owns_ok].
    apply (encl_add_up _ _ good _ _ _ _ T); intros t k G; apply G.
Qed.

End Cell.
End Precision.

(** Stored heads *)

Record anchor := Anchor { q_slope : Q; q_intercept : Q; q_own : Q; q_constant : Q }.

Fixpoint power_of_two (p : positive) : bool :=
  match p with xH => true | xO p => power_of_two p | xI _ => false end.
Definition scaling_number (q : Q) : bool :=
  match Qnum q with
  | Z0 => true
  | Zpos n | Zneg n => power_of_two n && power_of_two (Qden q)
  end.
Definition is_zero (q : Q) : bool := match Qnum q with Z0 => true | _ => false end.

Lemma is_zero_ok : forall q, is_zero q = true -> Q2R q = 0.
Proof. intros [n d]; unfold is_zero; simpl; destruct n; try discriminate; intros _; unfold Q2R; simpl; ring. Qed.

Lemma power_of_two_ok : forall p, power_of_two p = true -> exists n : Z, IZR (Zpos p) = powerRZ 2 n.
Proof.
  induction p as [p IH|p IH|]; simpl; intros H; [discriminate| |exists 0%Z; reflexivity].
  destruct (IH H) as [n E]; exists (n + 1)%Z; rewrite powerRZ_add by lra; rewrite <- E.
  change (Zpos p~0) with (2 * Zpos p)%Z; rewrite mult_IZR; simpl; ring.
Qed.

Lemma scaling_number_ok : forall q, scaling_number (Qred q) = true -> scales (Q2R q).
Proof.
  intros q H; replace (Q2R q) with (Q2R (Qred q)) by (apply Qeq_eqR, Qred_correct).
  destruct (Qred q) as [n d]; unfold scaling_number in H; cbn [Qnum Qden] in H.
  assert (D : forall m, power_of_two m && power_of_two d = true ->
            exists k : Z, IZR (Zpos m) * / IZR (Zpos d) = powerRZ 2 k).
  { intros m M; apply andb_true_iff in M; destruct M as [M1 M2].
    destruct (power_of_two_ok m M1) as [a A1], (power_of_two_ok d M2) as [b B1]; exists (a + - b)%Z.
    rewrite powerRZ_add by lra; rewrite powerRZ_neg', A1, B1; reflexivity. }
  assert (P : 0 < / IZR (Zpos d)) by (apply Rinv_0_lt_compat, IZR_lt; reflexivity).
  destruct n as [|n|n]; [left; unfold Q2R; simpl; ring| |]; right; destruct (D n H) as [k K]; exists k; rewrite <- K;
    unfold Q2R; cbn [Qnum Qden]; rewrite Rabs_mult, (Rabs_pos_eq (/ _)) by lra; f_equal.
  - apply Rabs_pos_eq, IZR_le; discriminate.
  - change (Zneg n) with (- Zpos n)%Z; rewrite opp_IZR, Rabs_Ropp; apply Rabs_pos_eq, IZR_le; discriminate.
Qed.

Definition to_key (a : anchor) : key :=
  Key (Q2R (q_slope a)) (Q2R (q_intercept a)) (Q2R (q_own a)) (Q2R (q_constant a))
    (scaling_number (Qred (q_slope a))) (is_zero (q_intercept a)).

Lemma to_key_sound : forall a, sound (to_key a).
Proof. intros a; split; [apply scaling_number_ok|apply is_zero_ok]. Qed.

(* A head with the output weight 1 *)
Record head := Head { q_gain : Q; q_offset : Q; anchors : list anchor }.
Definition is_gated (h : head) : bool := negb (forallb (fun a => is_zero (q_own a)) (anchors h)).
Definition exact (h : head) (s : R) : R := exact_head (Q2R (q_gain h)) (Q2R (q_offset h)) (map to_key (anchors h)) s.

(* y is a possible result of the module for the input s *)
Definition executes (f : format) (h : head) (s y : R) : Prop :=
  runs_single (unit_roundoff f) (smallest f) (exp_error f) (is_gated h)
    (Q2R (q_gain h)) (Q2R (q_offset h)) (map to_key (anchors h)) s y.

(** The check *)

Definition unit_Q (f : format) : Q := match f with float32 => (1 # 2 ^ 24) | float64 => (1 # 2 ^ 53) end.
Definition exp_Q (f : format) : Q := match f with float32 => (40 # 2 ^ 24) | float64 => (4 # 2 ^ 53) end.
Definition tau_Q : Q := (1 # 2 ^ 126).

Lemma pow_pos_IZR : forall n, IZR (Zpos (2 ^ n)) = 2 ^ Pos.to_nat n.
Proof. intros n; rewrite Pos2Z.inj_pow, <- (positive_nat_Z n), <- pow_IZR; reflexivity. Qed.

Lemma unit_ok : forall f, Q2R (unit_Q f) = unit_roundoff f.
Proof.
  intros [|]; unfold Q2R, unit_Q, unit_roundoff; cbn [Qnum Qden]; rewrite pow_pos_IZR, Rmult_1_l; f_equal; f_equal;
    vm_compute; reflexivity.
Qed.
Lemma exp_ok : forall f, Q2R (exp_Q f) = exp_error f.
Proof.
  intros [|]; unfold Q2R, exp_Q, exp_error; cbn [Qnum Qden]; rewrite pow_pos_IZR; do 3 f_equal; vm_compute; reflexivity.
Qed.
Lemma tau_ok : Q2R tau_Q = / 2 ^ 126.
Proof. unfold Q2R, tau_Q; cbn [Qnum Qden]; rewrite pow_pos_IZR, Rmult_1_l; do 2 f_equal; vm_compute; reflexivity. Qed.

Definition i_tau (prec : F.precision) := between prec 0 tau_Q.
Lemma encl_tau : forall prec f, encl (i_tau prec) (smallest f).
Proof.
  intros prec f; apply encl_between; rewrite tau_ok, RMicromega.Q2R_0; apply smallest_range.
Qed.

(* sums_ok and factor, in high precision *)
Opaque add sub mul div ofZ ofQ power between at_most i_tau.

Section Fine.
Variable fine : F.precision.

Definition i_sums_ok (f : format) (p : nat) : bool :=
  let iu := ofQ fine (unit_Q f) in let t := i_tau fine in let n := ofZ fine (Z.of_nat p) in
  let g := power fine (add fine (ofZ fine 1) iu) (p - 1) in
  let tn := mul fine t n in
  at_most (add fine (add fine (mul fine (sub fine g (ofZ fine 1)) (add fine (ofZ fine 1) (mul fine (ofZ fine 48) tn)))
                             (mul fine (mul fine (ofZ fine 24) tn) g)) (mul fine (ofZ fine 6) t)) (mul fine n iu)
  && at_most (mul fine n iu) (div fine (ofZ fine 1) (ofZ fine 4)).

Ltac enclosed := repeat match goal with
  | |- encl (add _ _ _) _ => apply encl_add
  | |- encl (sub _ _ _) _ => apply encl_sub
  | |- encl (mul _ _ _) _ => apply encl_mul
  | |- encl (div _ _ _) _ => apply encl_div
  | |- encl (power _ _ _) _ => apply encl_power
  | |- encl (ofZ _ (Z.of_nat _)) _ => assumption
  | |- encl (ofZ _ _) _ => apply encl_ofZ
  | |- _ => assumption
  end.

Lemma encl_u : forall prec f, encl (ofQ prec (unit_Q f)) (unit_roundoff f).
Proof. intros prec f; rewrite <- unit_ok; apply encl_ofQ. Qed.
Lemma encl_E : forall prec f, encl (ofQ prec (exp_Q f)) (exp_error f).
Proof. intros prec f; rewrite <- exp_ok; apply encl_ofQ. Qed.
Lemma encl_nat : forall prec n, encl (ofZ prec (Z.of_nat n)) (INR n).
Proof. intros; rewrite INR_IZR_INZ; apply encl_ofZ. Qed.

Lemma i_sums_good : forall f p, i_sums_ok f p = true -> sums_ok (unit_roundoff f) (smallest f) p.
Proof.
  intros f p H; unfold i_sums_ok in H; cbv zeta in H; apply andb_true_iff in H; destruct H as [H1 H2].
  assert (U := encl_u fine f); assert (N := encl_nat fine p); assert (T := encl_tau fine f).
  generalize dependent (unit_roundoff f); generalize dependent (smallest f); intros t T v U.
  unfold sums_ok; split; [refine (at_most_le _ _ _ _ _ _ H1)|refine (at_most_le _ _ _ _ _ _ H2)].
  - replace (((1 + v) ^ (p - 1) - 1) * (1 + 48 * t * INR p) + 24 * t * INR p * (1 + v) ^ (p - 1) + 6 * t)
      with (((1 + v) ^ (p - 1) - 1) * (1 + 48 * (t * INR p)) + 24 * (t * INR p) * (1 + v) ^ (p - 1) + 6 * t) by ring.
    enclosed.
  - enclosed.
  - enclosed.
  - replace (/ 4) with (1 / 4) by field; enclosed.
Qed.

Definition i_factor (f : format) (gated : bool) (p : nat) :=
  let iu := ofQ fine (unit_Q f) in
  sub fine (div fine (power fine (add fine (ofZ fine 1) iu) (p + 3 + if gated then 2 else 0))
                     (sub fine (ofZ fine 1) (mul fine (ofZ fine (Z.of_nat p)) iu))) (ofZ fine 1).

Lemma encl_factor : forall f gated keys, encl (i_factor f gated (length keys)) (factor (unit_roundoff f) gated keys).
Proof.
  intros f gated keys; unfold i_factor, factor, roundings; cbv zeta.
  assert (U := encl_u fine f); assert (N := encl_nat fine (length keys)); enclosed.
Qed.

End Fine.

Section Check.
Variables fine prec : F.precision.

Definition to_ikey (a : anchor) : ikey :=
  IKey (ofQ prec (q_slope a)) (ofQ prec (q_intercept a)) (ofQ prec (q_own a)) (ofQ prec (q_constant a))
    (scaling_number (Qred (q_slope a))) (is_zero (q_intercept a)).

Lemma to_ikey_same : forall a, same (to_ikey a) (to_key a).
Proof. intros a; repeat split; apply encl_ofQ. Qed.

Lemma to_ikeys_same : forall l, Forall2 same (map to_ikey l) (map to_key l).
Proof. induction l; simpl; constructor; [apply to_ikey_same|assumption]. Qed.

(* On [a, b], with the keys number [ref] as reference and [pivot] as pivot: |executed - exact| <= bound. [top] bounds how far the largest executed
   score is from that of the reference; cells are halved at most [depth] times. *)
Definition rounding_ok (f : format) (h : head) (a b : Q) (ref pivot : nat) (top bound : Q) (depth : nat) : bool :=
  match nth_error (anchors h) ref, nth_error (anchors h) pivot with
  | Some r, Some q =>
      let ikeys := map to_ikey (anchors h) in
      let p := length (anchors h) in
      let grown := i_factor fine f (is_gated h) p in
      let iu := ofQ prec (unit_Q f) in
      let cell := cell_ok prec iu (i_tau prec) (ofQ prec (exp_Q f))
        (scaling_number (Qred (q_gain h))) (is_zero (q_offset h)) (ofQ prec (q_gain h)) (ofQ prec (q_offset h)) ikeys
        (to_ikey r) (to_ikey q) (ofQ prec top) grown (ofQ prec bound) in
      i_sums_ok fine f p && at_most grown (ofZ prec 1) && at_most (ofQ prec top) (ofZ prec 1)
      && covered cell depth (between prec a b)
  | _, _ => false
  end.

Theorem rounding_proved : forall f h a b ref pivot top bound depth, rounding_ok f h a b ref pivot top bound depth = true ->
  forall s y, Q2R a <= s <= Q2R b -> executes f h s y -> Rabs (y - exact h s) <= Q2R bound.
Proof.
  intros f h a b ref pivot top bound depth H s y Hs Hy; unfold rounding_ok in H.
  destruct (nth_error (anchors h) ref) as [r|] eqn:R; [|discriminate].
  destruct (nth_error (anchors h) pivot) as [q|]; [|discriminate]; cbv zeta in H.
  apply andb_true_iff in H; destruct H as [H C]; apply andb_true_iff in H; destruct H as [H T].
  apply andb_true_iff in H; destruct H as [N G].
  set (keys := map to_key (anchors h)) in *.
  assert (Lk : length keys = length (anchors h)) by apply map_length.
  rewrite <- Lk in N, G, C.
  assert (Same : Forall2 same (map to_ikey (anchors h)) keys) by apply to_ikeys_same.
  assert (Ge := encl_factor fine f (is_gated h) keys).
  assert (Gp := at_most_le _ _ _ _ Ge (encl_ofZ prec 1) G).
  assert (Tp := at_most_le _ _ _ _ (encl_ofQ prec top) (encl_ofZ prec 1) T).
  assert (In_r : In (to_key r) keys) by (apply in_map, nth_error_In with ref, R).
  assert (Cell := covered_ok (fun s =>
     let lost := moving (unit_roundoff f) (smallest f) (exp_error f) (scaling_number (Qred (q_gain h))) (is_zero (q_offset h))
                   (Q2R (q_gain h)) (Q2R (q_offset h)) keys s (to_key r) (Q2R top) + 12 * smallest f * INR (length keys) in
     Forall (checked (unit_roundoff f) (smallest f) (scaling_number (Qred (q_gain h))) (is_zero (q_offset h))
       (Q2R (q_gain h)) (Q2R (q_offset h)) s (to_key r) (Q2R top)) keys /\ lost <= / 2 /\
     spread (unit_roundoff f) (smallest f) (exp_error f) (scaling_number (Qred (q_gain h))) (is_zero (q_offset h))
       (Q2R (q_gain h)) (Q2R (q_offset h)) keys s (to_key r) (Q2R top) (factor (unit_roundoff f) (is_gated h) keys) / (1 - lost)
     + underflow (smallest f) keys s <= Q2R bound)).
  specialize (Cell _ (fun i x t e =>
    cell_good prec _ _ _ _ _ _ (encl_u prec f) (encl_tau prec f)
      (encl_E prec f) _ _ _ _ _ _ keys _ (encl_ofQ prec (q_gain h)) (encl_ofQ prec (q_offset h)) Same
      (to_key r) (to_key q) (to_ikey r) (to_ikey q) _ _ _ _ _ _ (to_ikey_same r) (to_ikey_same q) (encl_ofQ prec top) Ge (encl_ofQ prec bound) x i e t)
    depth _ s C (encl_between prec a b s Hs)).
  cbv zeta in Cell; destruct Cell as (C1 & C2 & C3).
  refine (Rle_trans _ _ _ (stretch_rounding _ _ _ _ _ _ _ _ keys (to_key r) (Q2R top) _ _ s y (machine_format f) _ _ In_r
            (i_sums_good _ _ _ N) _ (conj (Rle_refl _) Gp) Tp C1 (conj (Rle_refl _) C2) Hy) C3).
  - split; [apply scaling_number_ok|apply is_zero_ok].
  - apply Forall_forall; intros k K; apply in_map_iff in K; destruct K as (x & <- & _); apply to_key_sound.
  - intros g; apply Forall_forall; intros k K; apply in_map_iff in K; destruct K as (x & <- & X); apply is_zero_ok.
    unfold is_gated in g; apply negb_false_iff in g; rewrite forallb_forall in g; apply g, X.
Qed.

End Check.

Transparent add sub mul div ofZ ofQ power between at_most i_tau.
